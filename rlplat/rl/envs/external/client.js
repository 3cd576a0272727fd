/** For a simulator in JavaScript: asks a running training for actions. One file without dependencies; copy it.

    import { Simulators } from "./client.js";

    const training = await Simulators.connect("ws://127.0.0.1:9900", 1);
    let actions = await training.reset(new Float32Array(obs), [1, 4]);
    for (;;) {
      const step = simulate(actions[""].data);       // typed arrays by path; "" where there is one
      actions = await training.step(step.obs, [1, 4], step.rewards, step.terminated, step.truncated, step.finalObs);
    }

In browsers, Deno, Bun and Node 22; in Node 20 with --experimental-websocket. The frames are described in
docs/external-simulators.md. Where an observation is a Dict or Tuple, pass {path: [typed array, shape], ...}. A training
that has ended, or refuses a frame, rejects with an Error that says so; connecting again is up to the caller.
*/

export const PROTOCOL = 1;

const DTYPES = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, int16: Int16Array, int32: Int32Array,
  int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  bool: Uint8Array,
};

/** Environments of one connection, in lock step: a row each. */
export class Simulators {
  /** The token of a training beyond this machine travels as a header, which browsers cannot set: there, use a proxy. */
  static async connect(address, numEnvs = 1, token = "") {
    const options = token ? { headers: { Authorization: `Bearer ${token}` } } : undefined;
    const simulators = new Simulators(new WebSocket(address, options));
    const welcome = await simulators.#receive();
    if (welcome.protocol !== PROTOCOL) {
      throw new Error(`the training speaks protocol ${welcome.protocol}, this client ${PROTOCOL}`);
    }
    simulators.spaces = welcome.spaces;
    simulators.numEnvs = numEnvs;
    simulators.#send({ type: "join", protocol: PROTOCOL, num_envs: numEnvs });
    simulators.seeds = (await simulators.#receive()).seeds;
    return simulators;
  }

  #socket;
  #frames = [];
  #waiting = null;
  #end = null;

  constructor(socket) {
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => {
      this.#frames.push(unpack(new Uint8Array(event.data)));
      this.#waiting?.();
    };
    socket.onerror = socket.onclose = () => {
      this.#end ??= new Error(`the connection to ${socket.url} ended`);
      this.#waiting?.();
    };
  }

  /** Episodes begin everywhere, with these observations -> actions: {path: {data, shape}}. */
  reset(obs, shape) {
    return this.#ask({ type: "reset", obs: leaves(obs, shape) });
  }

  /** -> the next actions. Where an episode ended, obs has the first observation of the next one and finalObs (of the same
      form) the last one of that. */
  step(obs, shape, rewards, terminated, truncated, finalObs = null) {
    const frame = {
      type: "step",
      obs: leaves(obs, shape),
      rewards: array(Float32Array.from(rewards), [this.numEnvs]),
      terminated: flags(terminated),
      truncated: flags(truncated),
    };
    if (finalObs !== null) frame.final_obs = leaves(finalObs, shape);
    return this.#ask(frame);
  }

  close() {
    this.#socket.close();
  }

  async #ask(frame) {
    this.#send(frame);
    const answer = await this.#receive();
    return Object.fromEntries(Object.entries(answer.actions).map(([path, each]) => [path, read(each)]));
  }

  #send(frame) {
    if (this.#end) throw this.#end;
    this.#socket.send(pack(frame));
  }

  async #receive() {
    while (!this.#frames.length) {
      if (this.#end) throw this.#end;
      await new Promise((resolve) => (this.#waiting = resolve));
    }
    const frame = this.#frames.shift();
    if (frame.type === "error") throw (this.#end = new Error(frame.message));
    if (frame.type === "end") throw (this.#end = new Error("the training has ended"));
    return frame;
  }
}

/** A typed array as it travels. */
export function array(data, shape, dtype = null) {
  dtype ??= Object.keys(DTYPES).find((name) => data instanceof DTYPES[name]);
  return { dtype, shape, data: new Uint8Array(data.buffer, data.byteOffset, data.byteLength) };
}

function flags(values) {
  return array(Uint8Array.from(values, Number), [values.length], "bool");
}

function leaves(obs, shape) {
  if (ArrayBuffer.isView(obs)) return { "": array(obs, shape) };
  return Object.fromEntries(Object.entries(obs).map(([path, [data, each]]) => [path, array(data, each)]));
}

function read({ dtype, shape, data }) {
  return { shape, data: new DTYPES[dtype](data.slice().buffer) }; // a copy, so that it is aligned
}

/** MessagePack of null, booleans, integers, texts, bytes, lists and objects; numbers with a fraction are float64. */
export function pack(value) {
  const parts = [];
  write(value, parts);
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function write(value, parts) {
  if (value === null || typeof value === "boolean") {
    parts.push(Uint8Array.of(value === null ? 0xc0 : value ? 0xc3 : 0xc2));
  } else if (Number.isInteger(value)) {
    parts.push(value >= 0 && value < 128 ? Uint8Array.of(value) : head(0xd3, 8, (v) => v.setBigInt64(1, BigInt(value))));
  } else if (typeof value === "number") {
    parts.push(head(0xcb, 8, (v) => v.setFloat64(1, value)));
  } else if (typeof value === "string") {
    const text = new TextEncoder().encode(value);
    parts.push(size(0xdb, text.length), text);
  } else if (value instanceof Uint8Array) {
    parts.push(size(0xc6, value.length), value);
  } else if (Array.isArray(value)) {
    parts.push(size(0xdd, value.length));
    value.forEach((each) => write(each, parts));
  } else {
    const pairs = Object.entries(value);
    parts.push(size(0xdf, pairs.length));
    pairs.forEach((pair) => pair.forEach((each) => write(each, parts)));
  }
}

function head(code, bytes, fill) {
  const made = new Uint8Array(1 + bytes);
  made[0] = code;
  fill(new DataView(made.buffer));
  return made;
}

function size(code, length) {
  return head(code, 4, (view) => view.setUint32(1, length));
}

/** What any MessagePack writer makes of such values. Whole numbers beyond 2^53 lose digits. */
export function unpack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const number = (kind, length) => {
    const found = Number(view[`get${kind}`](at));
    at += length;
    return found;
  };
  const unsigned = (length) => number(`Uint${8 * length}`, length);
  const take = (length) => {
    if (at + length > bytes.length) throw new RangeError("a frame that is cut");
    return bytes.subarray(at, (at += length));
  };
  const text = (length) => new TextDecoder().decode(take(length));
  const list = (length) => Array.from({ length }, next);
  const map = (length) => Object.fromEntries(Array.from({ length }, () => [next(), next()]));
  const codes = {
    0xc0: () => null, 0xc2: () => false, 0xc3: () => true,
    0xc4: () => take(unsigned(1)), 0xc5: () => take(unsigned(2)), 0xc6: () => take(unsigned(4)),
    0xca: () => number("Float32", 4), 0xcb: () => number("Float64", 8),
    0xcc: () => unsigned(1), 0xcd: () => unsigned(2), 0xce: () => unsigned(4), 0xcf: () => number("BigUint64", 8),
    0xd0: () => number("Int8", 1), 0xd1: () => number("Int16", 2), 0xd2: () => number("Int32", 4),
    0xd3: () => number("BigInt64", 8),
    0xd9: () => text(unsigned(1)), 0xda: () => text(unsigned(2)), 0xdb: () => text(unsigned(4)),
    0xdc: () => list(unsigned(2)), 0xdd: () => list(unsigned(4)),
    0xde: () => map(unsigned(2)), 0xdf: () => map(unsigned(4)),
  };
  function next() {
    const code = unsigned(1);
    if (code < 0x80) return code;
    if (code >= 0xe0) return code - 0x100;
    if (code < 0x90) return map(code & 0x0f);
    if (code < 0xa0) return list(code & 0x0f);
    if (code < 0xc0) return text(code & 0x1f);
    if (!(code in codes)) throw new RangeError(`byte ${code} in a frame`);
    return codes[code]();
  }
  const value = next();
  if (at !== bytes.length) throw new RangeError(`${bytes.length - at} bytes behind a frame`);
  return value;
}
