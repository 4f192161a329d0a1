"""With workers: the same verdict, the same properties, and what a dead worker leaves behind."""

import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import orjson
import pytest

STORED = "runs/gs1_vs_grpo_gsm8k_2b.embedded.verdict.json"
NUMPY = "{'seconds': np.float64(0.5), 'steps': np.int64(3)}"


def verdict_of(pytester):
    """The verdict that a session wrote, its items in an order of their own."""
    verdict = orjson.loads((pytester.path / STORED).read_bytes())
    verdict["items"].sort(key=lambda item: item["item"])
    return verdict


def properties_of(pytester):
    """For each item of the JUnit file, its properties and the tags of its result."""
    return {
        case.get("name"): (
            {p.get("name"): p.get("value") for p in case.iter("property")},
            [child.tag for child in case if child.tag != "properties"],
        )
        for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    }


def run(pytester, workers):
    """Run the experiment with so many workers; 0 is without xdist."""
    arguments = [f"-n{workers}", "--junitxml=junit.xml"]
    if workers:
        return pytester.runpytest_subprocess(*arguments, timeout=90)
    return pytester.runpytest(*arguments)


class TestWorkers:
    def test_verdict_and_properties_do_not_depend_on_workers(self, project):
        """A refuted claim, measured with numpy values: one verdict and one set of properties."""
        pytester = project(f"verdict='REFUTED', metrics={NUMPY}")
        seen = []
        for workers in (0, 2):
            result = run(pytester, workers)
            result.assert_outcomes(passed=17, failed=1)
            assert result.ret == 1
            seen.append((verdict_of(pytester), properties_of(pytester)))

        assert seen[0] == seen[1]
        verdict, properties = seen[0]
        assert verdict["verdict"] == "REFUTED"
        shared = {"experiment": "gs1_vs_grpo_gsm8k_2b", "scale": "embedded"}
        figures = {"metric.seconds": "0.5", "metric.steps": "3.0"}
        preflight = {"stage": "preflight", "arm": "", "verdict": "PASSED"}
        assert properties["test_preflight[pins]"] == (shared | preflight | figures, [])
        arm, _ = properties["test_arm[gs1_seed0]"]
        assert (arm["stage"], arm["arm"], arm["metric.rollouts"]) == ("arm", "gs1_seed0", "2560")
        decision, tags = properties["test_gs1_is_not_inferior_to_grpo[primary_noninferiority]"]
        assert (decision["stage"], decision["verdict"]) == ("decision", "REFUTED")
        assert (decision["metric.lower"], decision["metric.margin"]) == ("-0.215", "-0.05")
        assert tags == ["failure"]

    def test_an_inconclusive_verdict_exits_with_10(self, project):
        """The exit status is the controller's, which ran no item itself."""
        pytester = project("verdict='INCONCLUSIVE'")
        result = pytester.runpytest_subprocess("-n2", "--require-verdict", timeout=90)

        result.assert_outcomes(passed=17, xfailed=1)
        assert result.ret == 10
        assert verdict_of(pytester)["verdict"] == "INCONCLUSIVE"

    @pytest.mark.parametrize("workers", [0, 2])
    def test_blocked_items_carry_properties(self, project, workers):
        """What could not be asked still says what it is, and that it was BLOCKED."""
        pytester = project("raises={'train': errors.RunError('NaN')}, verdict='INCONCLUSIVE'")
        result = run(pytester, workers)

        result.assert_outcomes(passed=15, errors=3)
        properties, tags = properties_of(pytester)["test_arm[gs1_seed0]"]
        assert properties == {
            "experiment": "gs1_vs_grpo_gsm8k_2b",
            "scale": "embedded",
            "stage": "arm",
            "arm": "gs1_seed0",
            "verdict": "BLOCKED",
        }
        assert tags == ["error"]

    def test_a_dead_worker_makes_it_invalid(self, project):
        """What died is INVALID and keeps its properties; what was left is NOT RUN, and named."""
        pytester = project("dies='train'")
        result = pytester.runpytest_subprocess(
            "-n2", "--max-worker-restart=0", "--junitxml=junit.xml", timeout=90
        )

        assert result.ret != 0
        verdict = verdict_of(pytester)
        assert verdict["verdict"] == "INVALID"
        assert "crashed while running" in verdict["sentence"]
        died = [item for item in verdict["items"] if item["verdict"] == "INVALID"]
        assert {item["stage"] for item in died} <= {"arm", "decision"}
        properties = properties_of(pytester)
        for item in died:
            kept, tags = properties[item["item"].partition("::")[2]]
            assert (kept["stage"], kept["verdict"]) == (item["stage"], "INVALID")
            assert tags == ["error"]
        assert len(died) + len(verdict["not_run"]) == len(["arm", "arm", "decision"])
        assert all(line in result.stdout.str() for line in verdict["not_run"])


class TestLiveLines:
    @pytest.mark.parametrize("workers", ["-n0", "-n1"])
    def test_a_terminal_shows_each_step(self, project, workers):
        """Without `-s`, a line is drawn below pytest's own, and the cursor is put back."""
        project("train_seconds=1.5")
        screen, terminal = pty.openpty()
        session = subprocess.Popen(
            [sys.executable, "-m", "pytest", workers],
            stdout=terminal,
            stderr=terminal,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(terminal)
        shown = read_all(screen).replace(b"\r\r\n", b"\r\n")  # a terminal adds returns

        assert session.wait() == 0
        assert b"\x1b7\r\ngs1_seed0 train " in shown
        assert b"/40  reward 0.500  15,200 tokens/s  1:01 left\x1b8" in shown

    def test_a_log_shows_life(self, project):
        """Where there is no terminal, each arm gets a plain line, and no control characters."""
        pytester = project("train_seconds=1.2")
        result = pytester.runpytest_subprocess(timeout=60)

        result.assert_outcomes(passed=18)
        lines = [line for line in result.stdout.lines if line.startswith("gs1_seed0 train ")]
        assert len(lines) == 1
        assert "\x1b" not in result.stdout.str()


def read_all(descriptor):
    """Everything that is written to a terminal until its last writer is gone."""
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # how Linux says end of file here
            chunk = b""
        if not chunk:
            os.close(descriptor)
            return b"".join(chunks)
        chunks.append(chunk)
