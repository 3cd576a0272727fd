"""What workers print: a bounded share on the driver's stderr, all of it in files, and nobody waits for a terminal."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

import rlplat
from rlplat.errors import ConfigError
from rlplat.runtime.machine import worker_logs
from rlplat.runtime.machine.worker_logs import LogFile
from rlplat.runtime.node.output import Console, WorkerOutput
from rlplat.runtime.refs import backend as current_backend
from tests.faults.programs import next_line, program
from tests.patience import soon

pytestmark = pytest.mark.process

TALKER = """
import sys, time, rlplat
rlplat.init(num_cpus=1, num_gpus=0, log_dir=LOGS)

@rlplat.remote
class Talker:
    def talk(self, lines, text="line"):
        for number in range(lines):
            print(text, number)
        return lines

talker = Talker.remote()
print("running", flush=True)
"""


def text_of(logs: Path) -> str:
    return "".join(path.read_text() for path in sorted(logs.glob("*/logs/*.log")))


def test_a_flood_is_cut_and_counted_and_whole_in_its_file(tmp_path: Path) -> None:
    script = f"LOGS = {str(tmp_path)!r}\n" + TALKER + "rlplat.get(talker.talk.remote(50_000))\nrlplat.shutdown()"
    with program(script) as driver:
        code, _, errors = driver.finish()
    assert code == 0, errors
    shown = re.findall(r"^\(.*Talker pid=\d+\) line (\d+)$", errors, re.M)
    cut = re.findall(r"\(.*Talker pid=\d+\) \.\.\. ([\d,]+) lines dropped; they are in (\S+)$", errors, re.M)
    assert 2_000 <= len(shown) < 50_000
    assert shown[:2000] == [str(number) for number in range(2_000)]
    assert len(shown) + sum(int(number.replace(",", "")) for number, _ in cut) == 50_000
    lines = re.findall(r"^line (\d+)$", Path(cut[0][1]).read_text(), re.M)
    assert lines == [str(number) for number in range(50_000)]


def test_nobody_who_reads_stderr_stops_nobody(tmp_path: Path) -> None:
    """The driver's stderr is a pipe that nobody reads here until the end: much more than it holds is printed."""
    rest = """
for _ in range(5):
    rlplat.get(talker.talk.remote(300, "x" * 500), timeout=30)
print("done", flush=True)
sys.stdin.readline()
rlplat.shutdown()
"""
    with program(f"LOGS = {str(tmp_path)!r}\n" + TALKER + rest) as driver:
        assert driver.process.stdout is not None
        assert next_line(driver.process.stdout) == "done\n"
        code, _, errors = driver.finish()
    assert code == 0, errors
    assert text_of(tmp_path).count("x" * 500) == 1_500


def test_without_log_to_driver_there_are_the_files_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rlplat.init(num_cpus=1, num_gpus=0, log_dir=str(tmp_path), log_to_driver=False)

    @rlplat.remote
    def talk() -> None:
        print("to be kept")

    rlplat.get(talk.remote())
    assert soon(lambda: "to be kept" in text_of(tmp_path), 60)
    rlplat.shutdown()
    assert "to be kept" not in capfd.readouterr().err
    assert "to be kept" in text_of(tmp_path), "files stay after the end"
    for path in [*tmp_path.glob("rlplat-*"), *tmp_path.glob("rlplat-*/logs")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in tmp_path.glob("rlplat-*/logs/*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_last_words_are_in_the_file_and_in_the_error(tmp_path: Path) -> None:
    rlplat.init(num_cpus=1, num_gpus=0, log_dir=str(tmp_path))

    @rlplat.remote(max_retries=0)
    def die() -> None:
        print("last words", end="", flush=True)  # without a line end
        os._exit(3)

    try:
        with pytest.raises(rlplat.errors.WorkerCrashed, match=r"(?s)exited with code 3.*last words"):
            rlplat.get(die.remote(), timeout=30)
        assert "last words" in text_of(tmp_path)
    finally:
        rlplat.shutdown()


def test_the_last_five_sessions_are_kept(tmp_path: Path) -> None:
    for number in range(8):
        old = tmp_path / f"rlplat-{2**22 + number}-1-old" / "logs"
        old.mkdir(parents=True)
        (old.parent / "snapshots").mkdir()
        os.utime(old.parent, (number, number))
    (tmp_path / "somebody-elses").mkdir()
    rlplat.init(num_cpus=1, num_gpus=0, log_dir=str(tmp_path))
    try:
        left = sorted(path.name for path in tmp_path.iterdir())
        mine = os.path.basename(current_backend().link.session)  # type: ignore[attr-defined]
        old_ones = [f"rlplat-{2**22 + number}-1-old" for number in range(4, 8)]
        assert left == sorted([*old_ones, mine, "somebody-elses"])
        assert not list(tmp_path.glob("*/snapshots/*"))
        assert (tmp_path / mine / "logs").is_dir()
    finally:
        rlplat.shutdown()


def test_a_log_dir_that_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"log_dir='.*file' cannot be used"):
        rlplat.init(log_dir=str(tmp_path / "file"))


def test_a_log_file_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "MOST_BYTES", 1000)
    file = LogFile(str(tmp_path / "w1.log"))
    file.add_to_head("# head\n")
    for number in range(100):
        file.write(f"line {number:04d} {'x' * 89}\n".encode())
    new, old = (tmp_path / "w1.log").read_bytes(), (tmp_path / "w1.log.1").read_bytes()
    assert max(len(new), len(old)) <= 1100
    assert new.startswith(b"# head\n")
    assert b"line 0099" in new
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_loses_lines_and_says_how_many(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        console = Console(write)
        output = WorkerOutput("w1", console, LogFile("/dev/full"), True)
        output.take(b"a\n" * 3_000, "w1", 10.0)
        output.report("w1")
        text = os.read(read, 65536).decode()
        assert text.count("(w1) a\n") == 2_000
        assert "1,000 lines dropped; they are in /dev/full, but for 6,000 bytes" in text
        loss = "rlplat: output of workers is lost: /dev/full cannot be written: No space left on device\n"
        assert text.count(loss) == 1
    finally:
        os.close(read)
        os.close(write)


def test_a_console_that_nobody_reads_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlplat.runtime.node.output._MOST_WAITING", 100_000)
    read, write = os.pipe()
    try:
        console = Console(write)
        for _ in range(3_000):
            console.write("x" * 99 + "\n")
        assert console.is_waiting
        text = ""
        while console.is_waiting or "dropped" not in text:
            text += os.read(read, 65536).decode()
            console.flush()
        dropped = int(re.findall(r"\.\.\. ([\d,]+) pieces of output were dropped", text)[0].replace(",", ""))
        assert text.count("x" * 99) + dropped == 3_000
    finally:
        os.close(read)
        os.close(write)


def test_a_log_file_says_whose_it_is(tmp_path: Path) -> None:
    rlplat.init(num_cpus=1, num_gpus=0, log_dir=str(tmp_path), log_to_driver=False)
    try:

        @rlplat.remote
        class Talker:
            def pid(self) -> int:
                print("hello")
                return os.getpid()

        talker = Talker.remote()
        pid = rlplat.get(talker.pid.remote())
        assert soon(lambda: "hello\n" in text_of(tmp_path), 60)
        head = rf"# w\d+ pid={pid} started=\d+\n# Actor .*Talker\nhello\n"
        assert re.fullmatch(head, text_of(tmp_path)), text_of(tmp_path)
    finally:
        rlplat.shutdown()


def test_a_progress_bar_is_seen_while_it_runs() -> None:
    read, write = os.pipe()
    try:
        output = WorkerOutput("w1", Console(write), LogFile("/dev/null"), True)
        shown: list[tuple[float, str]] = []

        def take(data: bytes, now: float) -> None:
            output.take(data, "w1", now)
            os.set_blocking(read, False)
            try:
                shown.extend((now, line) for line in os.read(read, 65536).decode().splitlines())
            except BlockingIOError:
                pass

        take(b"before\r\n", 0.0)
        for tick in range(1, 300):  # 30 s
            take(f"\rstep {tick}".encode(), tick / 10)
        take(b"\rstep 300\nafter", 30.0)
        take(b"\r", 30.1)
        take(b"all\n", 30.2)
        assert [line for _, line in shown] == [
            "(w1) before", "(w1) step 11", "(w1) step 31", "(w1) step 71", "(w1) step 151", "(w1) step 251",
            "(w1) step 300", "(w1) all",
        ]  # fmt: skip
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("cuts", [1, 2, 3, 5, 7])
def test_however_output_is_cut_the_same_lines_are_seen(cuts: int) -> None:
    text = b"a\nb\r\n\rone\rtwo\n\n x\r\r\ny\rz"
    read, write = os.pipe()
    try:
        output = WorkerOutput("w1", Console(write), LogFile("/dev/null"), True)
        for start in range(0, len(text), cuts):
            output.take(text[start : start + cuts], "w", 0.0)
        output.end("w", 0.0)
        assert os.read(read, 65536).decode() == "".join(f"(w) {line}\n" for line in ("a", "b", "two", "", " x", "z"))
    finally:
        os.close(read)
        os.close(write)
