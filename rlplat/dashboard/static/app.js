"use strict";
// The dashboard's page. Hash routes: #/ runs, #/run/NAME, #/compare/NAME|NAME, #/experiment/NAME, #/cluster, #/serving.
// All text goes through textContent, so names with markup in them are only text.

const COLORS = ["#1f77e0", "#e8702a", "#2a9d5c", "#b453c6", "#d43d51", "#0fa3b1", "#9c7a23", "#6b7785"];
const exported = typeof EXPORTED === "undefined" ? null : EXPORTED;
const page = document.getElementById("page");
const state = document.getElementById("state");
let current = null; // the page that is shown: {poll?, destroy?}

async function api(name, ...pairs) { // pairs: [key, value]
  if (exported) {
    const path = name + (pairs.length ? "?" : "") + pairs.map(([key, value]) => `${key}=${value}`).join("&");
    if (!(path in exported)) throw new Error("this is not in the exported file");
    return exported[path];
  }
  const query = pairs.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
  const answer = await fetch(`/api/${name}?${query}`);
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
}

// An environment of a file of the user's has the file's whole path in config.yaml.
function withoutFolder(env) { return typeof env === "string" && env.includes(".py:") ? env.slice(env.lastIndexOf("/") + 1) : env; }

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

const link = (kind, name, text) => h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, text || name);
const missing = (value) => value == null || value === "";
function number(value, digits = 4) {
  if (missing(value) || Number.isNaN(+value)) return "–";
  value = +value;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(digits));
}
function seconds(value) {
  if (missing(value)) return "–";
  if (value < 120) return `${(+value).toFixed(1)} s`;
  return value < 7200 ? `${(value / 60).toFixed(value < 600 ? 1 : 0)} min` : `${(value / 3600).toFixed(1)} h`;
}
function show(...children) {
  page.replaceChildren(...children.flat());
}
function say(text, isBad = false) {
  state.textContent = text;
  state.className = isBad ? "bad" : "";
}

// ---------------------------------------------------------------- tables

function sortableTable(columns, rows, { sorted = null, descending = true } = {}) {
  // columns: [{title, value(row), cell?(row), numeric?}]
  const body = h("tbody");
  const heads = columns.map((column) => {
    const button = h("button", { type: "button", onclick: () => order(column, sorted === column ? !descending : true) }, column.title);
    return h("th", { class: column.numeric ? "number" : "", scope: "col" }, button);
  });
  function order(column, isDescending) {
    sorted = column; descending = isDescending;
    const chosen = column ? [...rows].sort((a, b) => compare(column.value(a), column.value(b)) * (descending ? -1 : 1)) : rows;
    heads.forEach((head, i) => head.setAttribute("aria-sort", columns[i] === column ? (descending ? "descending" : "ascending") : "none"));
    body.replaceChildren(...chosen.map((row) => h("tr", {}, columns.map((column) =>
      h("td", { class: column.numeric ? "number" : "" }, column.cell ? column.cell(row) : text(column, row))))));
  }
  function text(column, row) {
    const value = column.value(row);
    return missing(value) ? "–" : column.numeric ? number(value) : String(value);
  }
  order(sorted, descending);
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), body));
}
function compare(a, b) {
  if (missing(a) || missing(b)) return missing(a) - missing(b) || 0;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

// ---------------------------------------------------------------- runs

async function runsPage() {
  const chosen = new Set();
  let data = await api("runs"), filter = "", drawn = "";
  const place = h("div");
  const compareButton = h("button", { type: "button", disabled: true, onclick: () => { location.hash = "#/compare/" + [...chosen].map(encodeURIComponent).join("|"); } }, "Compare");
  const seedsButton = h("button", { type: "button", disabled: true, title: "choose all runs that differ from the chosen ones only by their seed", onclick: () => {
    const groups = new Set(data.runs.filter((row) => chosen.has(row.run)).map((row) => row.group));
    for (const row of data.runs) if (row.group && groups.has(row.group)) chosen.add(row.run);
    draw(true);
  } }, "+ other seeds");
  const howTo = h("span", { class: "dim" }, "tick runs in the table to compare them");
  const search = h("input", { type: "search", placeholder: "filter: algorithm, environment, name", "aria-label": "filter runs", oninput: (event) => { filter = event.target.value.toLowerCase(); draw(true); } });
  function draw(isForced) {
    const words = filter.split(/\s+/).filter(Boolean);
    const rows = data.runs.filter((row) => words.every((word) => `${row.run} ${row.algo} ${row.env} ${row.trainable}`.toLowerCase().includes(word)));
    const seen = JSON.stringify(rows);
    compareButton.disabled = exported || chosen.size === 0;
    seedsButton.disabled = exported || chosen.size === 0;
    howTo.hidden = exported || chosen.size > 0;
    compareButton.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    if (!isForced && seen === drawn) return;
    drawn = seen;
    const runs = rows.filter((row) => row.kind === "run"), experiments = rows.filter((row) => row.kind === "experiment");
    place.replaceChildren();
    if (!data.runs.length) place.append(h("p", { class: "dim" }, `No runs in ${data.root} yet. Start one: `, h("code", {}, "rlplat train --algo ppo --env CartPole-v1")));
    if (runs.length) place.append(sortableTable([
      { title: "", value: (row) => chosen.has(row.run), cell: (row) => h("input", { type: "checkbox", checked: chosen.has(row.run), "aria-label": `choose ${row.run}`, onchange: (event) => { event.target.checked ? chosen.add(row.run) : chosen.delete(row.run); draw(false); } }) },
      { title: "run", value: (row) => row.run, cell: (row) => link("run", row.run) },
      { title: "return", value: (row) => row.episode_return_mean, numeric: true },
      { title: "evaluation", value: (row) => row.eval_return_mean, numeric: true },
      { title: "algorithm", value: (row) => row.algo },
      { title: "environment", value: (row) => withoutFolder(row.env) },
      { title: "seed", value: (row) => row.seed, numeric: true },
      { title: "env steps", value: (row) => row.env_steps, numeric: true },
      { title: "wall time", value: (row) => row.wall_s, cell: (row) => seconds(row.wall_s), numeric: true },
      { title: "state", value: (row) => row.is_running, cell: (row) => h("span", { class: row.is_running ? "running" : "dim" }, row.is_running ? "running" : "ended") },
      { title: "updated", value: (row) => row.updated },
    ], runs));
    if (experiments.length) place.append(h("h2", {}, "Experiments"), sortableTable([
      { title: "experiment", value: (row) => row.run, cell: (row) => link("experiment", row.run) },
      { title: "trainable", value: (row) => row.trainable },
      { title: "searcher", value: (row) => row.searcher },
      { title: "scheduler", value: (row) => row.scheduler },
      { title: "trials", value: (row) => row.trials_ended, cell: (row) => `${row.trials_ended} of ${row.trials ?? "?"}`, numeric: true },
      { title: "metric", value: (row) => row.metric },
      { title: "best", value: (row) => row.best, numeric: true },
      { title: "state", value: (row) => row.is_running, cell: (row) => h("span", { class: row.is_running ? "running" : "dim" }, row.is_running ? "running" : "ended") },
      { title: "updated", value: (row) => row.updated },
    ], experiments));
  }
  show(h("h1", {}, "Runs"), h("div", { class: "dim" }, data.root), h("div", { class: "bar" }, search, compareButton, seedsButton, howTo), place);
  draw(true);
  return { period: 5000, poll: async () => { data = await api("runs"); draw(false); } };
}

// ---------------------------------------------------------------- charts

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function axes(xName, yName) {
  const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "11px system-ui" };
  const short = (value) => value == null ? "" : Math.abs(value) >= 1e6 ? value / 1e6 + "M" : Math.abs(value) >= 1e4 ? value / 1e3 + "k" : String(+value.toPrecision(6));
  return [{ ...axis, label: xName, labelSize: 20, labelFont: axis.font, values: (_, ticks) => ticks.map(short) }, { ...axis, label: yName, labelSize: 18, labelFont: axis.font, size: 52, values: (_, ticks) => ticks.map(short) }];
}
const waiting = new Set(); // charts without a plot: those in view are drawn at once, the others while nothing else is to do
let isDrawing = false;
function drawSoon() {
  if (isDrawing) return;
  isDrawing = true;
  setTimeout(() => {
    isDrawing = false;
    const [next] = [...waiting].filter((chart) => chart.data && chart.place.clientWidth);
    if (next) { next.draw(); drawSoon(); }
  });
}
addEventListener("beforeprint", () => [...waiting].forEach((chart) => chart.draw()));
class Chart {
  // One plot in a panel, with a button that saves it. series: [{label, color, points?, band?: [high, low]}]
  constructor(title, series, { wide = false, onclick = null, bands = [], fromZero = false, yName = "" } = {}) {
    this.yName = yName || (wide ? title : "");
    this.place = h("div");
    this.panel = h("section", { class: "chart" + (wide ? " wide" : "") }, h("div", { class: "head" }, h("h3", {}, title), saveButtons(this, title)), this.place);
    this.series = series; this.bands = bands; this.fromZero = fromZero; this.height = wide ? 320 : 190; this.onclick = onclick; this.plot = null; this.data = null;
    waiting.add(this);
    this.sizes = new ResizeObserver(() => { if (this.plot) this.plot.setSize({ width: this.place.clientWidth, height: this.height }); else this.draw(); });
    this.sizes.observe(this.place);
  }
  set(data) { this.data = data; if (this.plot) this.plot.setData(data); else if (this.isNear()) this.draw(); else drawSoon(); }
  isNear() { const box = this.panel.getBoundingClientRect(); return box.width > 0 && box.top < innerHeight + 400; }
  draw() {
    if (this.plot || !this.data || !this.place.clientWidth) return;
    waiting.delete(this);
    const options = {
      width: this.place.clientWidth, height: this.height, axes: axes(X_NAMES[xKey()], this.yName), bands: this.bands,
      scales: { x: { time: false }, y: this.fromZero ? { range: (_, low, high) => [0, 1.1 * high || 1] } : {} }, cursor: { y: false, focus: { prox: 24 } }, legend: { live: true },
      series: [{ label: X_NAMES[xKey()], value: (_, v) => number(v) }, ...this.series.map((one) => ({
        label: one.label, class: one.class, stroke: one.color, width: one.points ? 0 : (one.width ?? 1.6), spanGaps: true, show: one.show !== false,
        paths: one.points ? () => null : undefined,
        points: one.points ? { show: true, size: 8, fill: one.color, stroke: one.color } : { show: (u, i) => u.data[i].filter((v) => v != null).length < 3 },
        value: (_, v) => number(v) }))],
    };
    this.plot = new uPlot(options, this.data, this.place);
    if (this.onclick) this.plot.over.addEventListener("click", () => this.plot.cursor.left >= 0 && this.onclick(this.plot.posToVal(this.plot.cursor.left, "x")));
  }
  redraw() { if (this.plot) { this.plot.destroy(); this.plot = null; this.data = null; waiting.add(this); } } // its axes have other names
  destroy() { waiting.delete(this); this.sizes.disconnect(); if (this.plot) this.plot.destroy(); }
}
const X_NAMES = { env_steps: "env steps", wall_s: "wall time (s)" };
function saveButtons(chart, title) {
  const name = title.replace(/[^\w.-]+/g, "_");
  const save = (blob, end) => { const at = h("a", { href: URL.createObjectURL(blob), download: `${name}.${end}` }); at.click(); setTimeout(() => URL.revokeObjectURL(at.href), 1000); };
  const button = (text, what) => h("button", { type: "button", class: "save", title: `save ${title} as ${text}`, onclick: () => { chart.draw(); if (chart.plot) what(); } }, text);
  return h("span", { class: "saves" },
    button("PNG", () => {
      const drawn = chart.plot.ctx.canvas, canvas = h("canvas", { width: drawn.width, height: drawn.height + 30 * devicePixelRatio }), context = canvas.getContext("2d");
      context.fillStyle = css("--bg"); context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(drawn, 0, 30 * devicePixelRatio);
      context.font = `${13 * devicePixelRatio}px system-ui`;
      let left = 10 * devicePixelRatio;
      for (const one of chart.series.filter((each) => each.class !== "band-edge")) { context.fillStyle = one.color; context.fillText(one.label, left, 20 * devicePixelRatio); left += context.measureText(one.label).width + 20 * devicePixelRatio; }
      canvas.toBlob((blob) => save(blob, "png"));
    }),
    button("SVG", () => save(new Blob([svgOf(chart)], { type: "image/svg+xml" }), "svg")),
    button("CSV", () => {
      const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
      const rows = chart.data[0].map((_, i) => chart.data.map((column) => column[i] ?? "").join(","));
      save(new Blob([[[xKey(), ...chart.series.map((one) => quoted(one.label))].join(","), ...rows].join("\n") + "\n"], { type: "text/csv" }), "csv");
    }));
}
function svgOf(chart) {
  const width = 640, height = 400, box = [70, 40, width - 20, height - 50];
  const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const { min: left, max: right } = chart.plot.scales.x, { min: low, max: high } = chart.plot.scales.y;
  const at = (x, y) => `${(box[0] + (x - left) / (right - left || 1) * (box[2] - box[0])).toFixed(1)},${(box[3] - (y - low) / (high - low || 1) * (box[3] - box[1])).toFixed(1)}`;
  const dots = (values) => chart.data[0].map((x, i) => values[i] == null ? null : [x, values[i]]).filter(Boolean);
  const parts = [`<rect width="${width}" height="${height}" fill="#fff"/>`];
  for (let i = 0; i <= 5; i++) {
    const x = left + i / 5 * (right - left), y = low + i / 5 * (high - low), [px] = at(x, low).split(","), py = at(left, y).split(",")[1];
    parts.push(`<path d="M${box[0]},${py}H${box[2]}M${px},${box[1]}V${box[3]}" stroke="#ddd"/>`, `<text x="${px}" y="${box[3] + 16}" text-anchor="middle">${escaped(number(x, 3))}</text>`, `<text x="${box[0] - 6}" y="${+py + 4}" text-anchor="end">${escaped(number(y, 3))}</text>`);
  }
  for (const band of chart.bands) {
    const [a, b] = band.series.map((i) => dots(chart.data[i]));
    parts.push(`<polygon fill="${band.fill.slice(0, 7)}" fill-opacity=".2" points="${[...a, ...b.reverse()].map(([x, y]) => at(x, y)).join(" ")}"/>`);
  }
  let place = box[0];
  chart.series.forEach((one, i) => {
    if (one.class === "band-edge") return;
    const found = dots(chart.data[i + 1]);
    parts.push(one.points || found.length < 3 ? found.map(([x, y]) => { const [px, py] = at(x, y).split(","); return `<circle cx="${px}" cy="${py}" r="4" fill="${one.color}"/>`; }).join("") : `<polyline fill="none" stroke="${one.color}" stroke-width="1.6" points="${found.map(([x, y]) => at(x, y)).join(" ")}"/>`);
    parts.push(`<text x="${place}" y="22" fill="${one.color}">${escaped(one.label)}</text>`);
    place += 7 * one.label.length + 20;
  });
  parts.push(`<text x="${(box[0] + box[2]) / 2}" y="${height - 10}" text-anchor="middle">${escaped(X_NAMES[xKey()])}</text>`, `<text transform="translate(16,${(box[1] + box[3]) / 2}) rotate(-90)" text-anchor="middle">${escaped(chart.yName || chart.series[0].label)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif" font-size="12">${parts.join("")}</svg>`;
}
const xKey = () => localStorage.getItem("x") || "env_steps";
function xSwitch(onchange) {
  const buttons = Object.entries(X_NAMES).map(([key, title]) => h("button", { type: "button", class: key === xKey() ? "on" : "", "aria-pressed": String(key === xKey()), onclick: () => {
    localStorage.setItem("x", key);
    buttons.forEach((button) => { const on = button.textContent === title; button.className = on ? "on" : ""; button.setAttribute("aria-pressed", String(on)); });
    onchange();
  } }, title));
  return h("div", { class: "bar" }, h("span", { class: "dim" }, "x axis:"), ...buttons);
}

// ---------------------------------------------------------------- one run

const HIDDEN = new Set(["iteration", "env_steps", "wall_s", "episode_return_mean", "eval/return_mean", "eval/env_steps", "eval/weights_version", "learner/weights_version"]);
async function runPage(name) {
  const info = await api("run", ["run", name]);
  const first = await api("metrics", ["run", name]);
  let cursor = first.cursor, columns = first.columns, offset = 0;
  const charts = new Map(), groups = new Map(), top = h("div", { class: "charts" }), grid = h("div"), cards = h("div", { class: "cards" });
  const film = h("div"), log = h("pre", { tabindex: "0", "aria-label": "log" }), hintPlace = h("div");
  const length = () => (columns.env_steps || []).length;
  const get = (key) => columns[key] || new Array(length()).fill(null);
  function drawCards() {
    const last = (key) => { const values = get(key); for (let i = values.length - 1; i >= 0; i--) if (values[i] != null) return values[i]; return null; };
    cards.replaceChildren(...[["env steps", number(last("env_steps"))], ["return (100 episodes)", number(last("episode_return_mean"))], ["evaluation", number(last("eval/return_mean"))], ["env steps/s", number(last("env_steps_per_s"))], ["wall time", seconds(last("wall_s"))], ["episodes", number(last("episodes"))]]
      .map(([title, value]) => h("div", { class: "card" }, h("span", { class: "dim" }, title), h("b", {}, value))));
  }
  function play(step) {
    const videos = info.videos.filter((video) => video.env_steps != null);
    if (!videos.length) return;
    const nearest = videos.reduce((a, b) => Math.abs(b.env_steps - step) < Math.abs(a.env_steps - step) ? b : a);
    openVideo(nearest);
  }
  function openVideo(video) {
    const source = `/video?run=${encodeURIComponent(name)}&file=${encodeURIComponent(video.file)}`;
    film.replaceChildren(h("p", { class: "dim" }, video.file), h("video", { src: source, controls: true, autoplay: true, loop: true }));
  }
  function drawCharts() {
    // The evaluation at the end has a line of its own at the same env steps: a plot wants each x once.
    const all = get(xKey()), kept = all.map((_, i) => i).filter((i) => i + 1 === all.length || all[i] !== all[i + 1]);
    const once = (values) => kept.map((i) => values[i] ?? (i > 0 && all[i] === all[i - 1] ? values[i - 1] : null));
    const x = once(all);
    const main = charts.get("return") || new Chart("return", [{ label: "training (mean of 100 episodes)", color: COLORS[0] }, { label: "evaluation", color: COLORS[1], points: true }], { wide: true, onclick: (at) => xKey() === "env_steps" && play(at) });
    if (!charts.has("return")) { charts.set("return", main); top.append(main.panel); }
    const steps = get("env_steps"), ofWeights = get("eval/env_steps");
    const placeOf = (i) => {
      if (ofWeights[i] == null) return all[i];
      if (xKey() === "env_steps") return ofWeights[i];
      const after = steps.findIndex((step) => step >= ofWeights[i]);
      if (after < 1) return all[Math.max(after, 0)];
      return all[after - 1] + (all[after] - all[after - 1]) * (ofWeights[i] - steps[after - 1]) / (steps[after] - steps[after - 1] || 1);
    };
    const evaluated = (key) => new Map(get(key).map((value, i) => [value == null ? null : placeOf(i), value]).filter(([at]) => at != null).sort((a, b) => a[0] - b[0]));
    const trained = new Map(x.map((at, i) => [at, once(get("episode_return_mean"))[i]])), played = evaluated("eval/return_mean");
    const xs = [...new Set([...x, ...played.keys()])].sort((a, b) => a - b);
    main.set([xs, xs.map((at) => trained.get(at) ?? null), xs.map((at) => played.get(at) ?? null)]);
    for (const key of Object.keys(columns).filter((key) => !HIDDEN.has(key)).sort(inOrder)) {
      const values = get(key);
      const told = values.filter((value) => value != null);
      if (!told.length) continue;
      const isConstant = told.length > 2 && told.every((value) => value === told[0]);
      const group = groupOf(isConstant ? "constant" : key.includes("/") ? key.split("/")[0] : "training");
      if (!charts.has(key)) charts.set(key, new Chart(key, [{ label: key, color: COLORS[0], points: key.startsWith("eval/") }]));
      const chart = charts.get(key);
      if (chart.panel.parentElement !== group) group.append(chart.panel);
      if (key.startsWith("eval/")) { const found = evaluated(key); chart.set([[...found.keys()], [...found.values()]]); }
      else chart.set([x, once(values)]);
    }
  }
  function groupOf(title) {
    if (!groups.has(title)) {
      const place = h("div", { class: "charts" }), rank = ["env", "training", "eval", "learner", "policy", "agent", "rollout", "time"];
      const fold = h("details", { open: title === "env", "data-title": title }, h("summary", {}, title), place);
      const after = (other) => other === "constant" ? 99 : rank.indexOf(other) < 0 ? 50 : rank.indexOf(other);
      const next = [...grid.children].find((child) => after(child.dataset.title) > after(title));
      grid.insertBefore(fold, next || null);
      groups.set(title, place);
    }
    return groups.get(title);
  }
  function inOrder(a, b) {
    const rank = (key) => ["learner/", "eval/", "rollout/", "time/"].findIndex((start) => key.startsWith(start));
    return rank(a) - rank(b) || a.localeCompare(b);
  }
  function drawHints(hints) {
    hintPlace.replaceChildren(...hints.map((hint) => h("div", { class: "hint" }, h("b", {}, hint.symptom), h("div", {}, hint.advice))));
  }
  async function moreLog() {
    const more = await api("log", ["run", name], ...(exported ? [] : [["offset", offset]]));
    if (!more.text) return;
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
    log.textContent = offset === 0 ? more.text : log.textContent + more.text;
    offset = more.offset;
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
  show(
    h("h1", {}, name), h("div", { class: "dim" }, `${info.algo} on ${withoutFolder(info.env)}, seed ${info.seed ?? "–"}, `, h("span", { class: info.is_running ? "running" : "" }, info.is_running ? "running" : "ended"), first.skipped ? `; ${first.skipped} damaged lines of metrics.jsonl are skipped` : ""),
    cards, hintPlace, xSwitch(() => { charts.forEach((chart) => chart.redraw()); drawCharts(); }), top,
    info.videos.length ? [h("h2", {}, "Videos"), h("div", { class: "bar" }, info.videos.map((video) => h("button", { type: "button", onclick: () => openVideo(video) }, video.env_steps == null ? video.file : `at ${number(video.env_steps)} env steps`))), film] : [],
    h("h2", {}, "Log"), log, h("h2", {}, "More charts"), grid,
    h("div", { class: "split" }, h("section", {}, h("h2", {}, "Config"), h("pre", { tabindex: "0" }, info.config)), h("section", {}, h("h2", {}, "Checkpoints"), h("pre", { tabindex: "0" }, info.checkpoints.join("\n") || "none yet"))),
  );
  drawCards(); drawHints(info.hints); drawCharts(); await moreLog();
  let round = 0;
  return {
    period: 2000,
    poll: async () => {
      const more = await api("metrics", ["run", name], ["cursor", cursor]);
      cursor = more.cursor;
      const added = (more.columns.env_steps || []).length;
      if (more.reset) columns = more.columns;
      else if (added) {
        const before = length();
        for (const key of Object.keys(more.columns)) if (!columns[key]) columns[key] = new Array(before).fill(null);
        for (const key of Object.keys(columns)) columns[key] = columns[key].concat(more.columns[key] || new Array(added).fill(null));
      }
      if (added) { drawCards(); drawCharts(); }
      await moreLog();
      if (++round % 15 === 0) drawHints((await api("run", ["run", name])).hints);
    },
    destroy: () => charts.forEach((chart) => chart.destroy()),
  };
}

// ---------------------------------------------------------------- comparison

async function comparePage(_, encoded) {
  const names = encoded.split("|").map(decodeURIComponent);
  let metric = "episode_return_mean", chart = null;
  const place = h("div", { class: "charts" }), scores = h("div"), table = h("div"), few = h("div", { class: "dim" }), choice = h("select", { "aria-label": "metric", onchange: () => { metric = choice.value; draw(); } });
  async function draw() {
    const data = await api("compare", ...names.map((name) => ["run", name]), ["metric", metric], ["x", xKey()]);
    choice.replaceChildren(...data.names.map((name) => h("option", { value: name, selected: name === metric }, name)));
    const x = [...new Set(data.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const at = (curve, values) => { const found = new Map(curve.x.map((value, i) => [value, values[i]])); return x.map((value) => found.has(value) ? found.get(value) : null); };
    const series = [], columns = [x], bands = [];
    data.curves.forEach((curve, i) => {
      const color = COLORS[i % COLORS.length], first = series.length + 1;
      const most = Math.max(0, ...curve.num_runs);
      series.push({ label: curve.label + (most > 1 ? ` (n = ${most})` : ""), color, width: 2 });
      columns.push(at(curve, curve.middle));
      if (most > 1) {
        series.push(...["97.5 %", "2.5 %"].map((label) => ({ label, color: color + "66", width: 0.5, class: "band-edge" })));
        columns.push(at(curve, curve.high), at(curve, curve.low));
        bands.push({ series: [first + 1, first + 2], fill: color + "2a" });
      }
    });
    const least = Math.min(...data.curves.map((curve) => Math.max(0, ...curve.num_runs)).filter((most) => most > 1));
    few.textContent = least < 5 ? `n = ${least}: such an interval says little; compare at least five seeds.` : "";
    if (chart) chart.destroy();
    chart = new Chart(metric, series, { wide: true, bands });
    place.replaceChildren(chart.panel);
    chart.set(columns);
    const between = ([low, high]) => `[${number(low)}, ${number(high)}]`;
    scores.replaceChildren(
      sortableTable([{ title: "runs of", value: (row) => row.label }, ...["runs", "iqm", "mean", "worst", "best"].map((key) => ({ title: key === "iqm" ? "IQM" : key, value: (row) => row[key], numeric: true, cell: withInterval(key) }))], data.groups),
      ...data.better.map((pair) => h("div", { class: "dim" }, `P(${pair.a} > ${pair.b}) = ${pair.p.toFixed(2)} ${between(pair.interval)}`)));
    function withInterval(key) { return `${key}_interval` in (data.groups[0] || {}) ? (row) => `${number(row[key])} ${between(row[`${key}_interval`])}` : undefined; }
    const keys = Object.keys(data.differences);
    table.replaceChildren(keys.length ? sortableTable([{ title: "setting", value: (key) => key }, ...names.map((name) => ({ title: name, value: (key) => { const value = data.differences[key][name]; return value === null ? null : typeof value === "object" ? JSON.stringify(value) : String(value); } }))], keys) : h("p", { class: "dim" }, "The runs have the same settings."));
  }
  show(h("h1", {}, "Comparison"), h("div", { class: "dim" }, "Runs that differ only by their seed are one curve: interquartile mean, 95 % bootstrap interval."), few,
    h("div", { class: "bar" }, h("label", {}, "metric: ", choice)), xSwitch(draw), place, h("h2", {}, "Last values"), h("div", { class: "dim" }, "Interquartile mean and mean over the seeds with 95 % intervals; P(a > b): how often a run of a is better than one of b."), scores, h("h2", {}, "Settings that differ"), table);
  await draw();
  return { destroy: () => chart && chart.destroy() };
}

// ---------------------------------------------------------------- an experiment

async function experimentPage(name) {
  const canvas = h("canvas", { class: "parallel", role: "img", "aria-label": "parameters of each trial, coloured by its metric" });
  const place = h("div"), head = h("div", { class: "dim" });
  show(h("h1", {}, name), head, h("h2", {}, "Trials by their parameters"), canvas, h("h2", {}, "Trials"), place);
  let drawn = "";
  async function draw() {
    const data = await api("experiment", ["run", name]);
    const metric = Array.isArray(data.metric) ? data.metric[0] : data.metric;
    const seen = JSON.stringify(data.rows);
    if (seen === drawn) return;
    drawn = seen;
    head.textContent = `${data.trainable}: ${data.trials_ended} of ${data.trials ?? "?"} trials have ended, best ${metric}: ${number(data.best)}${data.is_running ? ", running" : ""}`;
    const keys = data.rows.length ? Object.keys(data.rows[0]).filter((key) => key !== "run") : [];
    const params = keys.filter((key) => key.startsWith("config/")), isMin = data.settings.includes("mode: min");
    place.replaceChildren(sortableTable(keys.map((key) => ({ title: key.replace("config/", ""), value: (row) => row[key] === "" ? null : Number.isNaN(+row[key]) ? row[key] : +row[key], numeric: data.rows.some((row) => row[key] !== "" && !Number.isNaN(+row[key])) || undefined,
      cell: key === "trial" ? (row) => row.run ? link("run", row.run, row.trial) : row.trial : undefined })), data.rows, {}));
    parallel(canvas, data.rows, [...params, metric].filter(Boolean), metric, isMin);
  }
  await draw();
  const redraw = () => { drawn = ""; draw(); };
  addEventListener("resize", redraw);
  return { period: 3000, poll: draw, destroy: () => removeEventListener("resize", redraw) };
}
function parallel(canvas, rows, keys, metric, isMin) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight, pad = 46;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const ink = canvas.getContext("2d");
  ink.scale(ratio, ratio); ink.clearRect(0, 0, width, height);
  ink.font = "11px system-ui"; ink.fillStyle = css("--dim"); ink.strokeStyle = css("--line"); ink.textAlign = "center";
  const scales = keys.map((key) => {
    const values = rows.map((row) => row[key]).filter((value) => !missing(value));
    if (values.every((value) => !Number.isNaN(+value))) {
      const numbers = values.map(Number), low = Math.min(...numbers), high = Math.max(...numbers), isLog = low > 0 && high / low > 30;
      const turn = (value) => isLog ? Math.log(value) : value;
      return { low: number(low), high: number(high), at: (value) => high === low ? 0.5 : (turn(+value) - turn(low)) / (turn(high) - turn(low)) };
    }
    const kinds = [...new Set(values)].sort();
    return { low: kinds[0] ?? "", high: kinds[kinds.length - 1] ?? "", at: (value) => kinds.length < 2 ? 0.5 : kinds.indexOf(value) / (kinds.length - 1) };
  });
  const x = (i) => keys.length < 2 ? width / 2 : pad + i * (width - 2 * pad) / (keys.length - 1), y = (at) => height - 30 - at * (height - 66);
  keys.forEach((key, i) => {
    ink.beginPath(); ink.moveTo(x(i), y(0)); ink.lineTo(x(i), y(1)); ink.stroke();
    ink.fillText(key.replace("config/", ""), x(i), 12); ink.fillText(scales[i].high, x(i), 28); ink.fillText(scales[i].low, x(i), height - 12);
  });
  const rank = keys.indexOf(metric);
  for (const row of rows) {
    if (keys.some((key) => missing(row[key]))) continue;
    let good = rank < 0 ? 0.5 : scales[rank].at(row[metric]);
    if (isMin) good = 1 - good;
    ink.strokeStyle = `hsl(${Math.round(230 - 190 * good)} 75% 50% / ${0.25 + 0.6 * good})`; ink.lineWidth = 0.8 + 1.6 * good;
    ink.beginPath();
    keys.forEach((key, i) => ink[i ? "lineTo" : "moveTo"](x(i), y(scales[i].at(row[key]))));
    ink.stroke();
  }
}

// ---------------------------------------------------------------- the cluster

async function clusterPage() {
  const place = h("div");
  show(h("h1", {}, "Cluster"), place);
  async function draw() {
    const { clusters } = await api("cluster");
    if (!clusters.length) { place.replaceChildren(h("p", { class: "dim" }, "No cluster runs on this machine.")); return; }
    place.replaceChildren(...clusters.map(({ cluster, status, actors, tasks, error }) => h("section", {},
      h("h2", {}, `process ${cluster.pid}`), h("div", { class: "dim" }, cluster.command || ""),
      error ? h("div", { class: "hint" }, error) : [
        h("div", { class: "cards" }, Object.entries(status.resources || {}).map(([name, value]) => h("div", { class: "card" }, h("span", { class: "dim" }, name), h("b", {}, resource(value))))),
        status.nodes.length > 1 ? sortableTable(["node", "machine", "state", "workers"].map((key) => ({ title: key, value: (row) => row[key], numeric: key === "workers" })).concat([{ title: "free", value: (row) => amounts(row.available) }, { title: "total", value: (row) => amounts(row.total) }]), status.nodes) : null,
        actors.length ? sortableTable(["actor", "class", "name", "state", "worker", "node", "restarts", "reason"].map((key) => ({ title: key, value: (row) => row[key], numeric: key === "restarts" })), actors) : h("p", { class: "dim" }, "no actors"),
        h("h2", {}, "Calls"), sortableTable([{ title: "name", value: (row) => row[0] }, { title: "calls by state", value: (row) => Object.entries(row[1]).filter(([key]) => key !== "mean_s").map(([key, count]) => `${count} ${key}`).join(", ") }, { title: "mean (s)", value: (row) => row[1].mean_s, numeric: true }], Object.entries(tasks)),
      ])));
  }
  await draw();
  return { period: 2000, poll: draw };
}
const amounts = (resources) => Object.entries(resources).map(([name, amount]) => `${name} ${number(amount)}`).join(", ");
const resource = (value) => value && typeof value === "object" ? Object.values(value).map((one) => number(one)).join(" / ") : number(value);

// ---------------------------------------------------------------- servers

async function servingPage() {
  const place = h("div"), began = Date.now(), kept = new Map(); // url -> what panels() returns
  let drawn = null;
  const ms = (value) => value == null ? "–" : `${number(value, 3)} ms`;
  show(h("h1", {}, "Serving"), h("div", { class: "dim" }, "Rates and latencies are those of the last ten seconds."), place);
  function panels() {
    const rate = new Chart("requests/s, over the seconds since this page was opened", [{ label: "requests/s", color: COLORS[0] }], { fromZero: true });
    const latency = new Chart("latency (ms)", [{ label: "p50", color: COLORS[0] }, { label: "p95", color: COLORS[1] }, { label: "p99", color: COLORS[4] }], { fromZero: true });
    const body = h("div"), table = h("div");
    return { rate, latency, body, table, rows: [], section: h("section", {}, body, h("div", { class: "charts" }, rate.panel, latency.panel), table) };
  }
  function fill(server, to) {
    const failed = Object.entries(server.statuses || {}).filter(([status]) => status >= "400");
    const names = new Set((server.replicas || []).map((row) => row.replica.replace(/-\d+$/, "")));
    to.body.replaceChildren(h("h2", {}, [[...names].join(", "), server.url].filter(Boolean).join(" at ")), h("div", { class: "dim" }, `process ${server.pid}`), ...(server.error ? [h("div", { class: "hint" }, server.error)] : [
      h("div", { class: "cards" }, [["requests/s", number(server.requests_per_s)], ["p50", ms(server.latency_ms.p50)], ["p95", ms(server.latency_ms.p95)], ["p99", ms(server.latency_ms.p99)], ["running", number(server.running)], ["waiting", number(server.waiting)], ["connections", number(server.connections)],
        ...(server.rows_per_s == null && server.env_steps == null ? [] : [["observations/s", number(server.rows_per_s)], ["observations a batch", number(server.rows_per_batch, 3)], ["sessions", number(server.sessions)], ["weights' env steps", number(server.env_steps)]])]
        .map(([title, value]) => h("div", { class: "card" }, h("span", { class: "dim" }, title), h("b", {}, value)))),
      h("p", { class: "dim" }, `${number(server.requests)} requests since the start` + (failed.length ? `, refused or failed: ${failed.map(([status, count]) => `${number(count)} with ${status}`).join(", ")}` : "")),
    ]));
    if (server.error) { to.table.replaceChildren(); return; }
    to.rows.push([(Date.now() - began) / 1000, server.requests_per_s, ...["p50", "p95", "p99"].map((name) => server.latency_ms[name])]);
    if (to.rows.length > 1800) to.rows.shift();
    const column = (i) => to.rows.map((row) => row[i]);
    to.rate.set([column(0), column(1)]); to.latency.set([column(0), column(2), column(3), column(4)]);
    to.table.replaceChildren(h("h3", {}, "Replicas"), sortableTable([{ title: "replica", value: (row) => row.replica }, { title: "requests/s", value: (row) => row.requests_per_s, numeric: true }, { title: "p95 (ms)", value: (row) => row.latency_ms.p95, numeric: true }, ...["running", "waiting", "connections", "sessions"].map((key) => ({ title: key, value: (row) => row[key], numeric: true }))], server.replicas));
  }
  async function draw() {
    const { servers } = await api("serving"), urls = servers.map((server) => server.url), there = new Set(urls);
    for (const url of [...kept.keys()].filter((url) => !there.has(url))) { forget(kept.get(url)); kept.delete(url); }
    for (const server of servers) if (!kept.has(server.url)) kept.set(server.url, panels());
    if (drawn !== urls.join(" ")) place.replaceChildren(...(servers.length ? [...kept.values()].map((one) => one.section) : [h("p", { class: "dim" }, "No server runs on this machine. Start one: ", h("code", {}, "rlplat serve RUN"))]));
    drawn = urls.join(" ");
    for (const server of servers) fill(server, kept.get(server.url));
  }
  const forget = (one) => { one.rate.destroy(); one.latency.destroy(); };
  await draw();
  return { period: 2000, poll: draw, destroy: () => kept.forEach(forget) };
}

// ---------------------------------------------------------------- routes and polling

const ROUTES = { "": runsPage, run: runPage, compare: comparePage, experiment: experimentPage, cluster: clusterPage, serving: servingPage };
let generation = 0;
async function route() {
  const mine = ++generation;
  const [, kind = "", name = ""] = location.hash.split("/");
  if (current && current.destroy) current.destroy();
  current = null;
  say("loading");
  try {
    const made = await (ROUTES[kind] || runsPage)(decodeURIComponent(name), name);
    if (mine !== generation) { if (made.destroy) made.destroy(); return; }
    current = made; say("");
    page.focus({ preventScroll: true });
    if (!exported && made.poll) follow(mine, made);
  } catch (error) {
    if (mine === generation) { show(h("h1", {}, "This page cannot be shown"), h("p", {}, error.message)); say(""); }
  }
}
async function follow(mine, made) {
  while (mine === generation) {
    await new Promise((wake) => setTimeout(wake, made.period));
    if (mine !== generation || document.hidden) continue;
    try { await made.poll(); say(""); } catch (error) { say(error instanceof TypeError ? "the server does not answer" : error.message, true); }
  }
}
if (exported) document.querySelectorAll(".live").forEach((element) => element.remove());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", route);
addEventListener("hashchange", route);
route();
