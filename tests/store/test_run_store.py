import json
import logging
import subprocess
import sys

import pytest

from harness.errors import StoreError, StoreVersionError
from harness.store import RunStore


def parts(learning_rate: float = 4e-05, steps: int = 40, seed: int = 0) -> dict[str, object]:
    """Return the parts of a small arm."""
    training = {"learning_rate": learning_rate, "steps": steps}
    return {"registration": {"training": training}, "seed": seed}


class TestOpen:
    def test_creates_the_folder_with_its_format(self, tmp_path) -> None:
        """A new store says which format it has; opening it again changes nothing."""
        RunStore(tmp_path / "deep/runs")
        RunStore(tmp_path / "deep/runs")

        assert (tmp_path / "deep/runs/store.json").read_text() == '{"format":1}'

    def test_a_newer_format_is_refused(self, tmp_path) -> None:
        """One line with the format found, the one supported and what to do; nothing is written."""
        (tmp_path / "store.json").write_text('{"format": 7, "new": true}')
        with pytest.raises(StoreVersionError) as caught:
            RunStore(tmp_path)

        assert str(caught.value) == (
            f"the run store {tmp_path} has format 7, this harness reads up to 1: "
            "install the newer harness or choose another --runs-dir"
        )
        assert [p.name for p in tmp_path.iterdir()] == ["store.json"]

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "1"}', '{"format": 0}'])
    def test_something_else_is_refused(self, tmp_path, text: str) -> None:
        """A store.json that names no format is not taken for a store."""
        (tmp_path / "store.json").write_text(text)
        with pytest.raises(StoreError, match="names no store format"):
            RunStore(tmp_path)

    def test_an_unwritable_root_is_one_line(self, tmp_path) -> None:
        """A file in the way of the folder raises with the path and the system's reason."""
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match=r"can't create .*file.*--runs-dir") as caught:
            RunStore(tmp_path / "file" / "runs")

        assert "\n" not in str(caught.value)

    def test_imports_nothing_heavy(self) -> None:
        """The store can be read without pytest, torch, transformers or tinker."""
        code = (
            "import sys, harness.store;"
            "print([m for m in ('pytest', 'torch', 'tinker', 'transformers') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

        assert done.stdout == "[]\n", done.stderr


class TestEntries:
    def test_lists_by_name_and_age(self, tmp_path) -> None:
        """All entries, or those of one name, with what a report needs; unwritten ones are not."""
        store = RunStore(tmp_path)
        for name, value in [("arm/grpo", 2), ("arm/grpo", 1), ("arm", 1), ("evaluation", 1)]:
            entry = store.entry(name, {"value": value})
            entry.publish_step(value, {})
        entry.finish()
        store.entry("arm/gs1", {"value": 1})

        assert [(e.name, e.parts["value"], e.steps(), e.is_complete) for e in store.entries()] == [
            ("arm", 1, [1], False),
            ("arm/grpo", 2, [2], False),
            ("arm/grpo", 1, [1], False),
            ("evaluation", 1, [1], True),
        ]
        assert [e.key for e in store.entries("arm")] == [store.entry("arm", {"value": 1}).key]
        assert store.entries("arm/gs1") == []

    def test_a_listed_entry_is_the_entry(self, tmp_path) -> None:
        """An entry from the list reads and writes where the one made from its parts does."""
        store = RunStore(tmp_path)
        store.entry("arm", parts()).publish("metrics", 1)
        (listed,) = store.entries()

        assert listed.read("metrics") == 1
        assert (listed.folder, listed.key) == (
            store.entry("arm", listed.parts).folder,
            store.entry("arm", parts()).key,
        )

    def test_key_json_tells_a_person_what_it_is(self, tmp_path) -> None:
        """Beside the records lies what the key was made from, in plain indented text."""
        entry = RunStore(tmp_path).entry("arm/a", parts())
        entry.publish("metrics", 1)
        text = (entry.folder / "key.json").read_text()

        about = json.loads(text)
        assert (about["name"], about["key"], about["parts"]) == ("arm/a", entry.key, parts())
        assert entry.folder.relative_to(tmp_path).as_posix() == f"entries/arm/a/@{entry.key[:16]}"
        assert '\n  "parts": {\n' in text

    def test_a_corrupt_key_is_passed_over(self, tmp_path, caplog) -> None:
        """One damaged key.json warns and hides its entry, not the others."""
        store = RunStore(tmp_path)
        for name in ("a", "b"):
            store.entry(name, {}).publish("metrics", 1)
        (store.entry("a", {}).folder / "key.json").write_text("{")
        with caplog.at_level(logging.WARNING):
            assert [entry.name for entry in store.entries()] == ["b"]

        assert "key.json is corrupt" in caplog.text

    @pytest.mark.parametrize("name", ["..", "/etc/x", "a/../../b"])
    def test_names_stay_inside(self, tmp_path, name: str) -> None:
        """A name from a card can't lead out of the store."""
        with pytest.raises(StoreError, match="not safe as a path"):
            RunStore(tmp_path).entry(name, {})
