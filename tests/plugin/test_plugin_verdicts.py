"""From a scripted run to the verdict: terminal, exit status, verdict.json."""

import hashlib
import shutil

import orjson
import pytest

from harness.plugin import verdict_json

GATE = "gs1_effective_contributors_median"
FAILED_GATE = f"gates={{'{GATE}': 'gate {GATE}: 63 was executed, bounds [2, 40]; lower tau'}}"
DECISION = "test_gs1_is_not_inferior_to_grpo[primary_noninferiority]"
STORED = "runs/gs1_vs_grpo_gsm8k_2b.embedded.verdict.json"
KEYS = {"experiment", "scale", "card_sha256", "verdict", "sentence", "criteria", "gates"} | {
    "preflights",
    "arms",
    "base",
    "attempts",
}


def verdict_of(pytester, path=STORED):
    """The verdict that a session wrote."""
    return orjson.loads((pytester.path / path).read_bytes())


def calls_of(pytester):
    """What a session asked of its run, in order."""
    return (pytester.path / "calls").read_text().split()


def break_card(pytester):
    """Give the card a value of the wrong type and a key that it may not have."""
    card = pytester.path / "experiments/cards/gs1_vs_grpo_gsm8k_2b.json"
    card.write_text(card.read_text().replace('"lora_rank": 32', '"lora_rank": "32", "x": 1', 1))


class TestThreeVerdicts:
    def test_a_rule_that_holds_is_a_pass(self, project):
        """VALIDATED: every item passes, and the exit status is 0."""
        pytester = project()
        result = pytester.runpytest("--require-verdict", "--verdict-json=here/v.json")

        result.assert_outcomes(passed=18)
        assert result.ret == 0
        verdict = verdict_of(pytester)
        assert verdict == verdict_of(pytester, "here/v.json")
        assert set(verdict) >= KEYS
        assert verdict["verdict"] == "VALIDATED"
        assert [arm["rollouts"] for arm in verdict["arms"]] == [2560, 2560]
        assert verdict["base"] == {"accuracy": 0.7301, "n_items": 1319}
        assert [gate["ok"] for gate in verdict["gates"]] == [True] * 6
        assert [flight["outcome"] for flight in verdict["preflights"]] == ["passed"] * 9
        assert verdict["criteria"][0]["lower"] == -0.035
        assert verdict["attempts"] == 2
        assert verdict["not_run"] == []
        result.stdout.fnmatch_lines(["speaks of: *nothing about the card's model", "VALIDATED: *"])

    def test_a_rule_that_is_broken_is_a_failure(self, project):
        """REFUTED: the decision fails, alone, with the sentence, and the exit status is 1."""
        pytester = project("verdict='REFUTED'")
        result = pytester.runpytest("-v")

        result.assert_outcomes(passed=17, failed=1)
        assert result.ret == 1
        assert verdict_of(pytester)["verdict"] == "REFUTED"
        sentence = "REFUTED: accuracy of treatment - baseline, margin -5 points"
        assert f"{DECISION} REFUTED" in result.stdout.str()
        assert result.stdout.lines.count(sentence) == len(["the failure", "the verdict"])
        result.stdout.no_fnmatch_line("E  *")

    @pytest.mark.parametrize(("option", "status"), [("-q", 0), ("--require-verdict", 10)])
    def test_a_rule_that_cannot_tell_is_an_expected_failure(self, project, option, status):
        """INCONCLUSIVE: xfailed, and the exit status is 10 where a verdict is required, else 0."""
        pytester = project("verdict='INCONCLUSIVE'")
        result = pytester.runpytest(option)

        result.assert_outcomes(passed=17, xfailed=1)
        assert result.ret == status
        assert verdict_of(pytester)["verdict"] == "INCONCLUSIVE"
        assert f"{DECISION} - INCONCLUSIVE: accuracy of treatment" in result.stdout.str()

    def test_runxfail_never_makes_it_green(self, project):
        """`--runxfail` turns INCONCLUSIVE into a failure, and the verdict stays what it is."""
        pytester = project("verdict='INCONCLUSIVE'")
        result = pytester.runpytest("--runxfail")

        result.assert_outcomes(passed=17, failed=1)
        assert verdict_of(pytester)["verdict"] == "INCONCLUSIVE"

    def test_data_that_do_not_fit_the_rule_are_an_error(self, project):
        """An INVALID outcome is an error, not a failure: nothing was refuted."""
        pytester = project("verdict='INVALID'")
        result = pytester.runpytest()

        result.assert_outcomes(passed=17, errors=1)
        verdict = verdict_of(pytester)
        assert verdict["verdict"] == "INVALID"
        assert verdict["criteria"][0]["estimate"] is None
        assert verdict["criteria"][0]["outcome"] == "INVALID"


def state_rule(pytester, combine):
    """Give the card's rule a premise, two claims, and a way to combine them."""
    card = pytester.path / "experiments/cards/gs1_vs_grpo_gsm8k_2b.json"
    stated = orjson.loads(card.read_bytes())
    (criterion,) = stated["decision_rule"]["criteria"]
    criteria = [{**criterion, "id": id} for id in ("premise", "one", "other")]
    criteria[0]["premise"] = True
    stated["decision_rule"] |= {"criteria": criteria, "combine": combine}
    card.write_bytes(orjson.dumps(stated))
    registration = card.with_suffix(".registration.json")
    registered = orjson.loads(registration.read_bytes())
    registered["card_sha256"] = hashlib.sha256(card.read_bytes()).hexdigest()
    registration.write_bytes(orjson.dumps(registered))


class TestSeveralCriteria:
    @pytest.mark.parametrize(
        ("combine", "one", "verdict", "status"),
        [
            ("any_may_pass", "INCONCLUSIVE", "INCONCLUSIVE", 10),
            ("any_may_pass", "VALIDATED", "VALIDATED", 0),
            ("any_may_pass", "REFUTED", "INCONCLUSIVE", 10),
            ("all_must_pass", "VALIDATED", "INCONCLUSIVE", 10),
            ("all_must_pass", "REFUTED", "REFUTED", 1),
        ],
    )
    def test_the_decision_is_told_and_not_made_again(self, project, combine, one, verdict, status):
        """A premise that holds, one claim, one that says nothing: terminal, file, exit status."""
        said = {"premise": "VALIDATED", "one": one, "other": "INCONCLUSIVE"}
        pytester = project(f"verdict={said}")
        state_rule(pytester, combine)
        result = pytester.runpytest("--require-verdict")

        found = verdict_of(pytester)
        assert (found["verdict"], result.ret) == (verdict, status)
        result.stdout.fnmatch_lines(["verdict file: *", "", f"{verdict}: *"], consecutive=True)
        assert [each["id"] for each in found["criteria"]] == list(said)

    def test_workers_that_share_the_criteria_make_the_same_decision(self, project):
        """Each knows it whole; none of them has run all items."""
        pytester = project(
            "verdict={'premise': 'VALIDATED', 'one': 'VALIDATED', 'other': 'REFUTED'}"
        )
        state_rule(pytester, "any_may_pass")
        found = []
        for workers in ("-n0", "-n3"):
            assert pytester.runpytest_subprocess(workers, timeout=90).ret == 0
            verdict = verdict_of(pytester)
            found.append({key: verdict[key] for key in ("verdict", "sentence", "criteria")})

        assert found[0] == found[1]
        assert found[0]["verdict"] == "VALIDATED"

    @pytest.mark.parametrize(
        ("selection", "one", "verdict"),
        [
            ("premise or one", "REFUTED", "REFUTED"),
            ("premise or other", "REFUTED", None),
            ("premise or one", "VALIDATED", None),
            ("other", "VALIDATED", None),
        ],
    )
    def test_a_part_of_the_criteria_decides_what_it_asserts(self, project, selection, one, verdict):
        """REFUTED takes an item that says so, and all else every item; figures are of what ran."""
        said = {"premise": "VALIDATED", "one": one, "other": "VALIDATED"}
        pytester = project(f"verdict={said}")
        state_rule(pytester, "all_must_pass")
        asked = selection.split(" or ")
        pytester.runpytest("-k", " or ".join(f"is_not and {name}" for name in asked))

        found = verdict_of(pytester)
        assert found["verdict"] == verdict
        known = [each["id"] for each in found["criteria"] if each["estimate"] is not None]
        assert known == [name for name in said if name in asked]


class TestBlocking:
    def test_a_failed_preflight_blocks_everything_behind_it(self, project):
        """The preflight fails; pilot and training never start; each later item is an error."""
        pytester = project("preflights={'forecast': 'gate x is certain to fail; lower tau'}")
        result = pytester.runpytest()

        result.assert_outcomes(passed=8, failed=1, errors=9)
        assert result.ret == 1
        assert "pilot" not in calls_of(pytester)
        verdict = verdict_of(pytester)
        assert verdict["verdict"] == "INVALID"
        assert verdict["sentence"] == "preflight forecast: gate x is certain to fail; lower tau"
        assert [gate["ok"] for gate in verdict["gates"]] == [None] * 6
        assert verdict["criteria"][0]["outcome"] == "BLOCKED"
        result.stdout.fnmatch_lines(
            ["BLOCKED by preflight forecast: gate x is certain to fail; lower tau"]
        )

    def test_the_line_names_every_failed_preflight(self, project):
        """The first is quoted, the others are named."""
        pytester = project("preflights={'forecast': 'a', 'pins': 'tinker is 0.24; install 0.25'}")
        result = pytester.runpytest("-k", "is_not")

        result.stdout.fnmatch_lines(
            ["BLOCKED by preflight pins: tinker is 0.24; install 0.25 (also by forecast)"]
        )

    @pytest.mark.parametrize("selection", ["", "is_not"], ids=["all", "the decision alone"])
    def test_a_failed_gate_blocks_training(self, project, selection):
        """No arm is trained, and the decision is BLOCKED with gate, value and bound."""
        pytester = project(FAILED_GATE)
        result = pytester.runpytest("-k", selection)

        assert result.ret == 1
        assert "train" not in calls_of(pytester)
        assert verdict_of(pytester)["verdict"] == "INVALID"
        blocked = f"BLOCKED by gate {GATE}: 63 was executed, bounds [2, 40]; lower tau"
        assert f"ERROR at setup of {DECISION} __\n{blocked}\n" in result.stdout.str()

    @pytest.mark.parametrize("kind", ["RunError", "BudgetExceeded", "ServiceDied"])
    def test_an_error_of_the_harness_is_one_line(self, project, kind):
        """It blocks what needed the stage, names its class, and shows no traceback."""
        pytester = project(f"raises={{'train': errors.{kind}('stopped at step 3; run again')}}")
        result = pytester.runpytest()

        result.assert_outcomes(passed=15, errors=3)
        assert verdict_of(pytester)["sentence"] == f"training: {kind}: stopped at step 3; run again"
        assert (
            result.stdout.str().count(
                f"\nBLOCKED by training: {kind}: stopped at step 3; run again\n"
            )
            == len(["two arms", "and the decision", ""]) - 0
        )
        result.stdout.no_fnmatch_line("*doubles.py*")
        assert calls_of(pytester).count("train") == 1

    def test_an_unexpected_error_keeps_its_traceback(self, project):
        """A bug must be found, so it is shown where it happened."""
        pytester = project("raises={'pilot': ZeroDivisionError('one arm, no steps')}")
        result = pytester.runpytest()

        result.assert_outcomes(passed=9, errors=9)
        result.stdout.fnmatch_lines(["*doubles.py:*: ZeroDivisionError"])
        assert verdict_of(pytester)["verdict"] == "INVALID"

    def test_a_preflight_that_cannot_be_carried_out_is_an_error(self, project):
        """It is told from one that found problems, and blocks just the same."""
        pytester = project(
            "raises={'preflight:server_loss': errors.ServiceUnreachable('no answer in 15 s')}"
        )
        result = pytester.runpytest()

        result.assert_outcomes(passed=8, errors=10)
        verdict = verdict_of(pytester)
        assert verdict["preflights"][3]["outcome"] == "error"
        assert verdict["sentence"] == "preflight server_loss: ServiceUnreachable: no answer in 15 s"

    def test_an_arm_that_is_short_of_steps_makes_it_invalid(self, project):
        """Whatever the rule says, it was applied to another experiment."""
        pytester = project("missing_steps=1")
        result = pytester.runpytest()

        result.assert_outcomes(passed=16, failed=2)
        assert verdict_of(pytester)["verdict"] == "INVALID"


class TestClosing:
    def test_a_run_that_cannot_be_closed_is_one_line(self, project):
        """The last item gets an error besides its pass, and the verdict is INVALID."""
        pytester = project("raises={'close': errors.ServiceDied('the engine is gone')}")
        result = pytester.runpytest()

        result.assert_outcomes(passed=18, errors=1)
        assert verdict_of(pytester)["verdict"] == "INVALID"
        assert "closing the run: ServiceDied: the engine is gone" in result.stdout.lines


class TestSelection:
    def test_preflights_alone_train_nothing(self, project):
        """`-m preflight` runs the preflights, and no verdict is reached."""
        pytester = project()
        result = pytester.runpytest("-m", "preflight")

        result.assert_outcomes(passed=9, deselected=9)
        assert result.ret == 0
        assert {call.partition(":")[0] for call in calls_of(pytester)} == {
            "open",
            "preflight",
            "close",
        }
        verdict = verdict_of(pytester)
        assert verdict["verdict"] is None
        assert verdict["sentence"] == (
            "not decided: no selected item asks for criterion primary_noninferiority"
        )

    def test_one_preflight_collects_only_its_own_evidence(self, project):
        """`-k` picks one, and the others stay untouched."""
        pytester = project()
        pytester.runpytest("-k", "audit")

        assert calls_of(pytester) == ["open", "preflight:audit", "close"]

    def test_no_verdict_is_told_by_the_exit_status_if_one_is_required(self, project):
        """Green items that decide nothing exit with 11."""
        assert project().runpytest("-m", "gate", "--require-verdict").ret == 11

    def test_the_decision_alone_goes_through_every_stage(self, project):
        """`-k` on the decision trains and decides, and every stage is in the verdict."""
        pytester = project()
        result = pytester.runpytest("-k", "is_not")

        result.assert_outcomes(passed=1, deselected=17)
        verdict = verdict_of(pytester)
        assert verdict["verdict"] == "VALIDATED"
        assert [gate["ok"] for gate in verdict["gates"]] == [True] * 6

    def test_collecting_leaves_the_last_verdict_alone(self, project):
        """`--collect-only` opens nothing, writes nothing and removes nothing."""
        pytester = project()
        stored = pytester.path / STORED
        stored.parent.mkdir()
        stored.write_text("{}")
        result = pytester.runpytest("--collect-only", "--verdict-json", STORED)

        assert result.ret == 0
        assert stored.read_text() == "{}"
        assert not (pytester.path / "calls").exists()


class TestRecord:
    def test_a_post_hoc_verdict_has_an_exit_status_of_its_own(self, project):
        """12 where a verdict is required, in verdict.json as well; by itself it is a verdict."""
        pytester = project("post_hoc=True")

        assert pytester.runpytest().ret == 0
        assert verdict_of(pytester)["post_hoc"] is True
        assert pytester.runpytest("--require-verdict").ret == 12

    def test_a_verdict_file_is_read_back(self, project, monkeypatch):
        """Something else that writes there is told, and the session is not green."""
        pytester = project()
        real = verdict_json.write_atomic

        def other(path, data):
            real(path, data.replace(b"VALIDATED", b"REFUTED"))

        monkeypatch.setattr(verdict_json, "write_atomic", other)
        result = pytester.runpytest()

        assert result.ret == 1
        result.stdout.fnmatch_lines(["*verdict.json is not what this session has just written; *"])

    def test_the_head_of_the_record_stands_with_the_verdict(self, project):
        """In the terminal, in verdict.json, and as a JUnit property of the decision alone."""
        pytester = project("record='3:beef'")

        result = pytester.runpytest("--junitxml=junit.xml")

        result.stdout.fnmatch_lines(["record: 3:beef"])
        assert verdict_of(pytester)["record"] == "3:beef"
        assert (pytester.path / "junit.xml").read_text().count('name="record" value="3:beef"') == 1


class TestBadInput:
    def test_a_bad_card_is_a_line_a_problem(self, project):
        """No traceback, non-zero exit, and an INVALID verdict in place of an older one like it."""
        pytester = project()
        (pytester.path / "runs").mkdir()
        (pytester.path / STORED).write_text('{"verdict": null}')
        break_card(pytester)
        result = pytester.runpytest()

        result.assert_outcomes(errors=1)
        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.stdout.fnmatch_lines(
            [
                "gs1_vs_grpo_gsm8k_2b.json: /lora_rank is '32': *",
                "gs1_vs_grpo_gsm8k_2b.json: unknown key /x; *",
            ]
        )
        result.stdout.no_fnmatch_line("*Traceback*")
        result.stdout.no_fnmatch_line("*harness*.py:*")
        assert verdict_of(pytester)["verdict"] == "INVALID"

    def test_a_bad_card_says_so_in_workers_too(self, project):
        """Under xdist there is no internal error, and one report for all workers."""
        pytester = project()
        break_card(pytester)
        result = pytester.runpytest_subprocess("-n2", timeout=60)

        result.assert_outcomes(errors=1)
        assert result.ret == 1
        result.stdout.fnmatch_lines(["gs1_vs_grpo_gsm8k_2b.json: unknown key /x; *"])
        result.stdout.no_fnmatch_line("*INTERNALERROR*")
        assert verdict_of(pytester)["verdict"] == "INVALID"

    def test_a_card_that_does_not_exist_is_named(self, project):
        """The line says which file was looked for, and where."""
        pytester = project()
        (pytester.path / "experiments/cards/gs1_vs_grpo_gsm8k_2b.json").unlink()
        result = pytester.runpytest()

        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.stdout.fnmatch_lines(["gs1_vs_grpo_gsm8k_2b.json: can't be read (*"])

    def test_a_test_file_that_cannot_be_imported_is_invalid(self, project):
        """The verdict gives the error, the terminal its traceback."""
        pytester = project()
        test_file = pytester.path / "experiments/test_gs1.py"
        test_file.write_text(test_file.read_text().replace("import pytest", "import pytset", 1))
        result = pytester.runpytest()

        assert result.ret == pytest.ExitCode.INTERRUPTED
        sentence = verdict_of(pytester)["sentence"]
        assert sentence == "ModuleNotFoundError: No module named 'pytset'"

    def test_a_test_of_what_the_card_does_not_declare_is_refused(self, project):
        """A card without gates has nothing to hand to a gate's test: no silent skip."""
        pytester = project()
        card = pytester.path / "experiments/cards/gs1_vs_grpo_gsm8k_2b.json"
        scale = pytester.path / "none.json"
        gate = {"applicable": False, "checks": [], "reason": "none"}
        change = {"pointer": "/card/activation_gate", "reason": "to see"}
        document = {
            "name": "none",
            "claims": "nothing",
            "service": "embedded",
            "data": "embedded",
            "changes": [change],
            "patch": {"card": {"activation_gate": gate}},
        }
        scale.write_bytes(orjson.dumps(document))
        result = pytester.runpytest("--scale", "none.json")

        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.stdout.fnmatch_lines(
            [f"test_gs1.py::test_gate: {card.name} declares no gate; remove the test"]
        )

    def test_a_scale_file_that_does_not_exist_is_named(self, project):
        """`--scale` takes a path, and a wrong one is an error of the card's."""
        result = project().runpytest("--scale", "mine.json")

        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.stdout.fnmatch_lines(["scale mine.json is neither embedded, full nor a file at *"])

    def test_a_test_that_ignores_the_rule_makes_it_invalid(self, project):
        """All items are green, but the test did not say what the rule says: exit 1, INVALID."""
        pytester = project("verdict='REFUTED'")
        test_file = pytester.path / "experiments/test_gs1.py"
        text = test_file.read_text().replace("assert criterion.validated, criterion.sentence", "")
        test_file.write_text(text)
        result = pytester.runpytest()

        result.assert_outcomes(passed=18)
        assert result.ret == 1
        assert "the rule says REFUTED but the test passed" in verdict_of(pytester)["sentence"]

    @pytest.mark.parametrize(
        ("line", "stage"), [("assert preflight.ok", "pins"), ("assert gate.ok", GATE)]
    )
    def test_a_test_that_ignores_a_check_makes_it_invalid(self, project, line, stage):
        """A failed preflight or gate counts, whether or not its test asserts it."""
        script = "preflights={'pins': 'tinker is 0.24'}" if stage == "pins" else FAILED_GATE
        pytester = project(script)
        test_file = pytester.path / "experiments/test_gs1.py"
        test_file.write_text(test_file.read_text().replace(line, "assert True"))
        result = pytester.runpytest("-k", stage)

        result.assert_outcomes(passed=1, deselected=17)
        assert result.ret == 1
        assert verdict_of(pytester)["verdict"] == "INVALID"

    def test_a_skipped_stage_makes_it_invalid(self, project):
        """What was not looked at has not passed."""
        pytester = project()
        test_file = pytester.path / "experiments/test_gs1.py"
        skipping = "pytest.skip('not today')"
        test_file.write_text(test_file.read_text().replace("assert arm.steps", skipping + " and a"))
        result = pytester.runpytest()

        result.assert_outcomes(passed=16, skipped=2)
        assert result.ret == 1
        assert verdict_of(pytester)["verdict"] == "INVALID"

    def test_a_verdict_file_that_cannot_be_written_is_one_line(self, project):
        """The verdict is on the screen, and the exit status says that a file is missing."""
        pytester = project()
        (pytester.path / "runs").touch()
        result = pytester.runpytest("-k", "pins")

        assert result.ret == 1
        result.stdout.fnmatch_lines(["NO VERDICT: *", "StoreError: can't * */runs*"])
        result.stdout.no_fnmatch_line("*INTERNALERROR*")

    def test_a_verdict_file_in_no_folder_is_refused_before_anything_runs(self, project):
        """A path that can never be written is a usage error."""
        pytester = project()
        (pytester.path / "blocker").touch()
        result = pytester.runpytest("--verdict-json=blocker/v.json")

        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: --verdict-json: can't remove *blocker/v.json*"])
        assert not (pytester.path / "calls").exists()


class TestFiles:
    def test_several_experiments_make_a_list(self, project):
        """`--verdict-json` gets one object a test file, in order."""
        pytester = project()
        experiments = pytester.path / "experiments"
        shutil.copy(experiments / "test_gs1.py", experiments / "test_gs1_again.py")
        pytester.runpytest("--verdict-json=v.json", "-k", "audit or (again and pins)")

        ran = [
            [item["item"].partition("::")[0] for item in verdict["items"]]
            for verdict in verdict_of(pytester, "v.json")
        ]
        assert ran == [["experiments/test_gs1.py"], ["experiments/test_gs1_again.py"] * 2]

    def test_a_killed_session_leaves_no_verdict_of_its_own(self, project):
        """Its own file is gone; what an earlier session decided stays in the store."""
        pytester = project("dies='train'")
        (pytester.path / "runs").mkdir()
        for path in (STORED, "v.json"):
            (pytester.path / path).write_text('{"verdict": "VALIDATED"}')
        result = pytester.runpytest_subprocess("--verdict-json=v.json", timeout=60)

        assert result.ret == 3
        assert verdict_of(pytester) == {"verdict": "VALIDATED"}
        assert not (pytester.path / "v.json").exists()

    @pytest.mark.parametrize("what", ["preflights", "mistake"])
    def test_a_verdict_is_never_replaced_by_less(self, project, what):
        """Preflights alone, or a misspelt card, stand beside what was decided, for a while."""
        pytester = project()
        pytester.runpytest()
        decided = verdict_of(pytester)
        card = pytester.path / "experiments/cards/gs1_vs_grpo_gsm8k_2b.json"
        stated = card.read_text()
        if what == "mistake":
            break_card(pytester)
        partial = STORED.replace(".json", ".partial.json")

        result = pytester.runpytest(*(["-m", "preflight"] if what == "preflights" else []))

        assert verdict_of(pytester) == decided
        beside = verdict_of(pytester, partial)
        assert beside["verdict"] == (None if what == "preflights" else "INVALID")
        result.stdout.fnmatch_lines([f"verdict file: *{partial}"])

        card.write_text(stated)
        pytester.runpytest()
        assert verdict_of(pytester)["verdict"] == decided["verdict"]
        assert not (pytester.path / partial).exists()
        assert not list((pytester.path / "runs").glob("*.verdict.[0-9]*.json"))

    def test_a_verdict_that_comes_out_otherwise_keeps_the_one_before(self, project):
        """Each goes under a number, oldest first, whatever the last one says."""
        pytester = project()
        (pytester.path / "runs").mkdir()
        for word in ("REFUTED", "INCONCLUSIVE"):
            (pytester.path / STORED).write_text(f'{{"verdict": "{word}"}}')
            pytester.runpytest()
            assert verdict_of(pytester)["verdict"] == "VALIDATED"

        before = [
            verdict_of(pytester, STORED.replace(".json", f".{n}.json"))["verdict"] for n in (1, 2)
        ]
        assert before == ["REFUTED", "INCONCLUSIVE"]

    def test_other_tests_have_no_verdict(self, project):
        """A session without experiments prints no table, writes nothing, and requires nothing."""
        pytester = project()
        pytester.makepyfile(test_other="CARD = 'not an experiment'\ndef test_other(): pass")
        result = pytester.runpytest("test_other.py", "--verdict-json=v.json")

        assert result.ret == 0
        assert not (pytester.path / "v.json").exists()
        assert not (pytester.path / "runs").exists()
