"""How live lines look, and where the cursor goes."""

from dataclasses import replace

from harness.plugin.progress import LiveLines, drawn, live_line
from harness.protocol.stages import Progress

GS1 = Progress("gs1_seed0", "train", 12, 40, 0.6125, 15234.6, 61.4)


class TestLiveLine:
    def test_says_where_the_arm_is(self):
        """Step, reward, rate and time left, in this order."""
        expected = "gs1_seed0 train 12/40  reward 0.613  15,235 tokens/s  1:01 left"

        assert expected == live_line(GS1)

    def test_a_negative_forecast_is_no_time(self):
        """A step that was slower than the forecast does not show a negative time."""
        late = Progress("gs1_seed0", "train", 40, 40, 0.6, 1.0, -0.8)

        assert live_line(late).endswith(" 0:00 left")


class TestDrawn:
    def test_makes_room_and_puts_the_cursor_back(self):
        """Down two lines and up again first, so that the saved place stands if all scrolls."""
        expected = "\x1b[J\x1bD\x1bD\x1b[2A\x1b7\r\none\r\ntwo\x1b8"

        assert expected == drawn(["one", "two"], 80)

    def test_a_line_never_wraps(self):
        """A wrapped line would take more rows than were made room for."""
        assert "\r\n123456789\x1b8" in drawn(["1234567890abc"], 10)


class TestLog:
    def test_has_a_line_an_arm_and_no_empty_ones(self, tmp_path):
        """A line starts anew only where pytest has written since, whose line may not have ended."""
        live, grpo = LiveLines(tmp_path), replace(GS1, arm="grpo_seed0")
        with (tmp_path / "log").open("wb") as log:
            live._screen = log.fileno()
            live._log([GS1, grpo], 0.0)
            live.wipe()
            live._log([replace(GS1, step=13)], 20.0)

        lines = [live_line(each) for each in (GS1, grpo, replace(GS1, step=13))]
        assert "\n{}\n{}\n\n{}\n".format(*lines) == (tmp_path / "log").read_text()
