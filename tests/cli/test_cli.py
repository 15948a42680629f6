"""The command line: words, exit codes, standard input, JSON. Models are fakes; the real ones are tested elsewhere."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import cli
from qkv.adapt import native
from qkv.cli import VERBS, main
from qkv.cli.common import Arriving, choose_language, group_lines
from qkv.cli.usage import said_by_click
from qkv.devices import list_openmp
from qkv.errors import QkvError
from qkv.files import to_json_value


@dataclass
class Result:
    text: str
    score: float = -1.5
    tokens: list[int] = field(default_factory=lambda: [1, 2])
    alignment: list[list[float]] = field(default_factory=lambda: [[0.9, 0.1], [0.2, 0.8]])
    logprobs: list[float] = field(default_factory=lambda: [-0.5, float("-inf")])
    finish_reason: str = "eos"
    timing: dict[str, float] = field(default_factory=lambda: {"decode": 0.1})
    others: tuple["Result", ...] = ()
    error: Exception | None = None


class Fake:
    """A model that turns its input round and remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def translate(self, texts: list[str], **how: Any) -> list[Any]:
        self.asked.append((texts, how))
        return [Result(text[::-1], others=(Result(text),) if how["nbest"] > 1 else ()) for text in texts]

    def generate(self, prompts: list[str], **how: Any) -> list[Result]:
        self.asked.append((prompts, how))
        return [Result(prompt.upper() + "\nnext") for prompt in prompts]

    def stream(self, prompt: str, **how: Any) -> Iterator[str]:
        self.asked.append((prompt, how))
        yield from ("Buckle", " my", " shoe")

    encoder_decoder, tokenizer = False, None

    def score(self, texts: list[str]) -> list[float]:
        return [-float(len(text)) for text in texts]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    model = Fake()
    monkeypatch.setitem(vars(qkv), "load", lambda name, **how: model)
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    return model


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(args)
    out, err = capsys.readouterr()
    return code, out, err


def test_every_verb_has_its_file_and_every_file_its_verb() -> None:
    here = {p.stem for p in Path(main.__code__.co_filename).parent.glob("*.py")}
    here -= {"__init__", "__main__", "batches", "common", "decoding", "serve_ray", "usage", "workers"}
    assert here == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("lang", ["zh", "en"])
def test_help_begins_with_three_examples_that_name_the_verb(
    verb: str, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, verb, "--help", "--lang", lang)
    assert (code, err) == (0, "")
    assert all(line.startswith(f"  qkv {verb}") for line in out.splitlines()[:3])
    assert out.splitlines()[3] == ""
    assert "--json" in out
    assert ("界面语言" in out) == (lang == "zh")


def test_the_locale_chooses_the_language_and_the_flag_overrules_it() -> None:
    assert choose_language([], {"LANG": "zh_CN.UTF-8"}) == "zh"
    assert choose_language([], {"LC_ALL": "en_US.UTF-8", "LANG": "zh_CN.UTF-8"}) == "en"
    assert choose_language([], {"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "en_US"}) == "zh"
    assert choose_language(["info", "--lang", "en"], {"LANG": "zh_CN"}) == "en"
    assert choose_language(["info", "--lang=zh"], {}) == "zh"
    assert choose_language(["generate", "m", "--", "--lang", "zh"], {}) == "en"
    assert choose_language([], {}) == "en"


@pytest.mark.parametrize("words", [("zh", "看内部"), ("en", "Look inside")])
def test_the_table_of_verbs_speaks_both_languages(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--lang", words[0])
    assert code == 0
    assert words[1] in out
    assert all(f"  {verb} " in out for verb in VERBS)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["trnslate"], "did you mean translate"),
        (["xyz"], "the verbs are demo"),
        (["translate", "demo", "x", "--bean", "3"], "--beam"),
        (["translate"], "MODEL"),
        (["translate", "demo", "  "], "empty"),
        (["translate", "demo", "x", "--nbest", "9"], "--beam 9"),
        (["info", "demo", "--lang", "fr"], "zh"),
        (["info", "demo", "--threads", "0"], "threads"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_wrong_command_ends_with_2_and_says_what_to_do(
    args: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert told in err
    assert "Traceback" not in err


def test_one_text_gives_one_line(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "translate", "demo", "我爱学习。") == (0, "。习学爱我\n", "")
    assert fake.asked == [(["我爱学习。"], {"beam": 4, "length_penalty": 0.6, "nbest": 1})]


@pytest.mark.usefixtures("fake")
def test_scores_alignment_and_the_n_best_are_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "translate", "demo", "ab", "--nbest", "2", "--scores", "--align")
    assert out == "-1.5000\tba\n\t0-0 1-1\n-1.5000\tab\n\t0-0 1-1\n"


def test_standard_input_keeps_its_lines(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, "\ufeffab\r\n\n \ncd".encode())
    noted = "this model reads Chinese; found no Chinese in 'ab'\n"  # once, for the first such line
    assert run(capsys, "translate", "demo", "-") == (0, "ba\n\n\ndc\n", noted)
    assert [texts for texts, _ in fake.asked] == [["ab", "cd"]]


@pytest.mark.parametrize(
    ("beam", "sizes"), [(4, [32, 64, 128, 256, 256, 64]), (16, [32] + [64] * 12), (64, [32] * 25)]
)
def test_lines_are_read_in_groups_that_grow_with_their_hypotheses(
    beam: int, sizes: list[int], fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {n}" for n in range(800)]
    feed(monkeypatch, "\n".join(lines).encode())
    code, out, _ = run(capsys, "translate", "demo", "-", "--beam", str(beam))
    assert (code, out.splitlines()) == (0, [line[::-1] for line in lines])
    assert [len(texts) for texts, _ in fake.asked] == sizes


def test_lines_that_are_typed_are_answered_one_by_one(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, b"ab\ncd\nef\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert run(capsys, "translate", "demo", "-")[1] == "ba\ndc\nfe\n"
    assert [len(texts) for texts, _ in fake.asked] == [1, 1, 1]


@pytest.mark.usefixtures("fake")
def test_json_is_one_object_a_line_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(monkeypatch, "苹果\n\nb\n".encode())
    _, out, err = run(capsys, "translate", "demo", "-", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert [(t["source"], t["text"]) for t in told] == [("苹果", "果苹"), ("", ""), ("b", "b")]
    assert told[0]["score"] == -1.5
    assert "苹果" in out
    assert err == ""


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=5), max_size=40))
def test_as_many_lines_come_out_as_go_in(lines: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        feed(patch, "".join(line + "\n" for line in lines).encode())
        patch.setitem(vars(qkv), "load", lambda name, **how: Fake())
        patch.setattr(sys, "stdout", out := io.StringIO())
        assert main(["translate", "demo", "-"]) == 0
    told = out.getvalue().split("\n")[:-1]
    assert len(told) == len(lines)
    assert all(bool(a.strip()) == bool(b.strip()) for a, b in zip(told, lines, strict=True))


@pytest.mark.usefixtures("fake")
def test_invalid_utf_8_names_the_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, b"fine\n\xff\n")
    code, _, err = run(capsys, "score", "demo", "-")
    assert code == 2
    assert "line 2: byte 0xff is not UTF-8" in err


def test_generate_passes_on_only_what_was_typed(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys, "generate", "m", "One,", "-n", "8", "-t", "0.5", "--stop", ".", "--stop", "!", "--seed", "0"
    )
    assert out == "ONE,\nnext\n"
    assert fake.asked == [(["One,"], {"max_new_tokens": 8, "temperature": 0.5, "stop": [".", "!"], "seed": 0})]
    _, out, _ = run(capsys, "generate", "m", "One,", "--json")
    told = json.loads(out)
    assert told["finish_reason"] == "eos"
    assert told["logprobs"] == [-0.5, None]
    assert fake.asked[-1] == (["One,"], {})


def test_the_options_of_decoding_reach_the_library(
    fake: Fake, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    grammar = tmp_path / "rules.lark"
    grammar.write_text("start: /a/\n", encoding="utf-8")
    shared = ["--repetition-penalty", "1.2", "--presence-penalty", "0.5", "--frequency-penalty", "-0.5",
              "--no-repeat-ngram", "3", "--min-new-tokens", "2", "--logit-bias", " tea=2.5", "--logit-bias", "#17=-9",
              "--logit-bias", "a=b=1"]  # fmt: skip
    told = {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5, "no_repeat_ngram": 3,
            "min_new_tokens": 2, "logit_bias": {" tea": 2.5, 17: -9.0, "a=b": 1.0}}  # fmt: skip
    run(capsys, "generate", "demo-lm", "One,", *shared, "--beam", "4", "--groups", "2", "--diversity-penalty", "1",
        "--samples", "2", "--grammar", str(grammar))  # fmt: skip
    assert fake.asked[-1][1] == told | {"beam": 4, "groups": 2, "diversity_penalty": 1.0, "n": 2,
                                        "grammar": "start: /a/\n"}  # fmt: skip
    run(capsys, "generate", "demo-lm", "One,", "--json-schema", '{"type": "null"}', "--regex", "a*")
    assert fake.asked[-1][1] == {"json_schema": '{"type": "null"}', "regex": "a*"}
    run(capsys, "translate", "demo", "我", *shared, "--target-prefix", "I", "--must-include", "x y", "--must-include",
        "z", "--must-avoid", "q")  # fmt: skip
    wishes = {"target_prefix": "I", "must_include": ("x y", "z"), "must_avoid": ("q",)}
    assert fake.asked[-1][1] == told | wishes | {"beam": 4, "length_penalty": 0.6, "nbest": 1}
    for wrong in ("tea", "tea=", "=much"):
        code, out, err = run(capsys, "generate", "demo-lm", "One,", "--logit-bias", wrong)
        assert (code, out) == (2, "")
        assert "--logit-bias" in err
    assert run(capsys, "generate", "demo-lm", "One,", "--grammar", str(tmp_path / "none.lark"))[0] == 2


def test_settings_of_a_model_that_are_not_heeded_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import qkv

    model = qkv.load("demo-lm")
    model.generation_config |= {"penalty_alpha": 0.6, "repetition_penalty": 1.4}
    model.save(tmp_path)
    feed(monkeypatch, b"One, two,\nHumpty\n")
    code, out, err = run(capsys, "generate", str(tmp_path), "-", "-n", "4", "--sampling", "model", "--lang", "zh")
    assert (code, out.count("\n"), err.count("penalty_alpha")) == (0, 2, 1)
    assert "repetition_penalty" not in err
    assert run(capsys, "generate", str(tmp_path), "One", "-n", "4", "--sampling", "model", "--json")[2] == ""


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_options_of_decoding_stand_in_groups(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("generate", "translate"):
        help_ = run(capsys, verb, "--help", "--lang", lang)[1]
        heads = [line for line in help_.splitlines() if line.endswith((":", "：")) and not line.startswith(" ")]
        assert len(heads) == {"generate": 6, "translate": 5}[verb]
        assert help_.index("--nbest" if verb == "translate" else "--stop") < help_.index("--repetition-penalty")
        assert help_.index("--debug") < help_.index("--repetition-penalty"), "what is rare stands last"


@pytest.mark.usefixtures("fake")
def test_generate_writes_one_line_a_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    feed(monkeypatch, b"a\nb\n")
    assert run(capsys, "generate", "m", "-")[1] == "A\\nnext\nB\\nnext\n"


@pytest.mark.usefixtures("fake")
def test_generate_streams_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert main(["generate", "m", "One, two,", "-n", "3"]) == 0
    assert terminal.getvalue() == "Buckle my shoe\n"


@pytest.mark.usefixtures("fake")
def test_score_prints_the_number_before_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "score", "m", "abc")[1] == "-3.0000\tabc\n"
    assert json.loads(run(capsys, "score", "m", "abc", "--json")[1]) == {"text": "abc", "logprob": -3.0}


def test_show_and_info_print_what_the_library_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import qkv.hub

    monkeypatch.setattr(
        qkv.hub, "report", lambda name, **_: {"parameters": 1234, "bytes": {"weights_fp32": 4936}}
    )
    assert run(capsys, "info", "gpt2")[1] == "parameters  1,234\nbytes\n  weights fp32  4,936\n"
    assert json.loads(run(capsys, "info", "gpt2", "--json")[1])["parameters"] == 1234
    monkeypatch.setitem(vars(qkv), "show", lambda name, mode, language: f"# {name} {mode} {language}\n")
    assert run(capsys, "show", "gpt2", "--mode", "decode")[1] == "# gpt2 decode python\n"
    assert json.loads(run(capsys, "show", "gpt2", "--json")[1])["source"] == "# gpt2 None python\n"


def raising(error: BaseException) -> Any:
    def load(name: str, **how: str) -> None:
        raise error

    return load


class NotFinite(QkvError):
    exit_code = 3


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (QkvError("config.json: unknown key"), 2, "error: config.json: unknown key\n"),
        (NotFinite("loss is NaN at step 7"), 3, "error: loss is NaN at step 7\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (RuntimeError("boom\nmore"), 1, "error: RuntimeError: boom\nthis was not expected; run again with --debug"),
    ],
)
def test_errors_end_in_a_line_and_a_code(
    error: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setitem(vars(qkv), "load", raising(error))
    got, out, err = run(capsys, "score", "m", "x")
    assert (got, out) == (code, "")
    assert err.startswith(told)
    assert "Traceback" not in err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(vars(qkv), "load", raising(QkvError("why")))
    code, _, err = run(capsys, "score", "m", "x", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys, qkv.cli.doctor as d; from qkv.cli import main\n"
        "d.examine = lambda: {'x': 'y' * 10**6}; sys.exit(main(['doctor', '--json']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stderr
        child.stdout.read(1)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 0


def test_doctor_measures_and_says_it_in_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "doctor", "--json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["kernels"]["fp32_gflops"] > 0
    assert report["kernels"]["cpu_dtype"] in ("fp32", "bf16")
    compiled = native.library() is not None
    kernels = ("linear_bf16", "linear_int8", "linear_int4", "attention_of_a_step", "norm_of_a_step")
    assert [report["kernels"][name].startswith("row_") for name in kernels] == [compiled] * 5
    assert report["kernels"]["attention_of_a_prompt"].split(",")[0] in ("row_prompt.c", "torch")
    assert len(report["kernels"]["openmp"].split(", ")) == len(list_openmp())
    assert report["versions"]["qkv"] == qkv.__version__


def test_plain_keeps_json_valid() -> None:
    value = to_json_value({"a": float("nan"), "b": (1, 2.5), 3: Result("x"), "p": Path("a")})
    assert json.loads(json.dumps(value, allow_nan=False))["a"] is None
    assert value["3"]["text"] == "x"


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_no_color_is_heard(value: str, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("NO_COLOR", value)
    assert main(["lab"]) == 0
    assert main(["nonsense"]) == 2
    assert ("\x1b[" in out.getvalue(), "\x1b[" in err.getvalue()) == (coloured, coloured)


class Pipe:
    """Bytes as they are written, piece by piece; one more read than there are pieces would wait for ever."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0)


def test_who_waits_for_an_answer_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    pipe = Pipe("我\nyou\n".encode(), b"he\n", b"sh", b"e\nit", b"", b"")
    found = [(group, len(pipe.pieces)) for group in group_lines(Arriving(pipe))]
    assert found == [(["我", "you"], 5), (["he"], 4), (["she", "it"], 1)]  # none read before its answer


def test_lines_before_one_that_is_no_text_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    groups, found = group_lines(Arriving(io.BytesIO(b"a\nb\n\xff\nc\n"))), list[list[str]]()
    with pytest.raises(QkvError, match="standard input, line 3: byte 0xff"):
        found += groups
    assert [*found, *groups] == [["a", "b"]]


@given(text=st.text("a我\r\n \ufeff", max_size=60), cuts=st.lists(st.integers(1, 9), max_size=20))
def test_lines_are_those_of_the_text_however_it_arrives(text: str, cuts: list[int]) -> None:
    data, pieces = text.encode(), list[bytes]()
    for cut in cuts:
        pieces, data = [*pieces, data[:cut]], data[cut:]
    want = [line.decode().rstrip("\r\n") for line in io.BytesIO(text.encode())]
    want[:1] = [line.removeprefix("\ufeff") for line in want[:1]]
    assert list(Arriving(Pipe(*filter(None, [*pieces, data]), b"", b""))) == want


def test_a_tab_parts_what_is_given_from_what_is_scored(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    fake.score = lambda texts: asked.extend(texts) or [-1.0 for _ in texts]  # type: ignore[method-assign]
    fake.encoder_decoder = False  # type: ignore[attr-defined]
    assert run(capsys, "score", "m", "a\tb")[1] == "-1.0000\ta\tb\n"
    assert run(capsys, "score", "m", "a\tb", "--pairs")[0] == 0
    fake.encoder_decoder = True  # type: ignore[attr-defined]
    assert run(capsys, "score", "m", "书\tbook")[0] == 0
    assert asked == ["a\tb", ("a", "b"), ("书", "book")]
    for wrong in ("书", "a\tb\tc", "a\t"):
        code, _, err = run(capsys, "score", "m", wrong)
        assert code == 2, err
        assert "expected one" in err


@pytest.mark.parametrize(("own", "others", "found"), [
    ({}, False, "5000"), ({}, True, "1000"),
    ({"GOMP_SPINCOUNT": "7"}, True, "7"), ({"OMP_WAIT_POLICY": "active"}, True, "None"),
])  # fmt: skip
def test_threads_give_way_unless_somebody_says_otherwise(own: dict[str, str], others: bool, found: str) -> None:
    code = (f"import os; from qkv import cli; cli._others_run = lambda: {others}; cli.main(['--version']); "
            "print(os.environ.get('GOMP_SPINCOUNT'))")  # fmt: skip
    environ = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=environ | own, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == found


@pytest.mark.parametrize(("looks", "others"), [
    (["0.1 0.1 0.1 1/90 7"], False),
    (["3.0 2.0 1.0 2/90 7", "3.0 2.0 1.0 1/90 7"], False),  # only for a moment
    (["3.0 2.0 1.0 3/90 7"] * 3, True),
    (["nothing"], False),
])  # fmt: skip
def test_others_run_where_each_look_finds_more_than_this_process(
    monkeypatch: pytest.MonkeyPatch, looks: list[str], others: bool
) -> None:
    told = iter(looks)
    monkeypatch.setattr(cli.Path, "read_text", lambda *_, **__: next(told))
    assert cli._others_run() is others


@pytest.mark.parametrize("wrong", [FileNotFoundError, PermissionError])
def test_nobody_is_told_where_the_machine_does_not_say(
    monkeypatch: pytest.MonkeyPatch, wrong: type[OSError]
) -> None:
    def absent(*_: object, **__: object) -> str:
        raise wrong

    monkeypatch.setattr(cli.Path, "read_text", absent)
    assert not cli._others_run()


@pytest.mark.parametrize(("words", "told"), [
    (["train", "--foo"], "没有选项 --foo"),
    (["train", "--ouut", "x"], "是不是"),
    (["translate"], "缺 'MODEL'。"),
    (["runs", "--metric"], "选项 '--metric' 要有一个值。"),
    (["chat", "--quiet=yes"], "不带值"),
    (["generate", "demo-lm", "a", "b"], "多出了"),
    (["generate", "demo-lm", "a", "--top-p", "3"], "'--top-p' 的值不对：3.0 不在范围 0<x<=1 之内。"),
    (["generate", "demo-lm", "a", "--top-p", "x"], "'x' 不是数。"),
    (["generate", "demo-lm", "a", "--max-new-tokens", "x"], "'x' 不是整数。"),
    (["data", "nosuch"], "'nosuch' 不是 'check', 'get', 'pack', 'distil', 'cache' 之一。"),
    (["nosuch"], "没有动词 'nosuch'；有："),
    (["trane"], "是不是 train 或 translate？"),
    (["eval", "demo"], "；得到 0 个"),
    (["look", "demo"], "缺 TEXT"),
])  # fmt: skip
def test_a_wrong_command_line_is_told_in_chinese(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    code, _, err = run(capsys, "--lang", "zh", *words)
    assert code == 2
    assert told in err, err
    english = [word for word in re.findall(r"[A-Za-z]+", err.splitlines()[0]) if word in USAGE_WORDS]
    assert not english, err


USAGE_WORDS = {"Invalid", "Missing", "such", "valid", "requires", "Got", "range", "Did", "you", "one", "the", "found"}


@pytest.mark.parametrize(("said", "zh"), [
    ("No such option: --foo", "没有选项 --foo。"),  # before click 8.2
    ("No such option: --foo (Possible options: --out, --on)", "没有选项 --foo。 是不是其中之一：--out, --on？"),
    ("Invalid value for 'X': File 'a' does not exist.", "'X' 的值不对：文件 'a' 不存在。"),
    ("Invalid value for 'X': Path 'a' does not exist.", "'X' 的值不对：路径 'a' 不存在。"),
    ("Invalid value for 'X': File 'a' is a directory.", "'X' 的值不对：'a' 是目录，应是文件。"),
    ("Invalid value for 'X': Directory 'a' is not writable.", "'X' 的值不对：目录 'a' 不可写。"),
    ("Invalid value for 'X': 'a' is not a valid frob.", "'X' 的值不对：'a' 不是 frob。"),
    ("Something else.", "Something else."),
])  # fmt: skip
def test_what_click_says_is_known(said: str, zh: str) -> None:
    assert said_by_click(said, "zh").replace(" ", "") == zh.replace(" ", "")


def test_a_working_directory_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["models", "--lang", "en"]) == 2
    assert "working directory is gone" in capsys.readouterr().err


def test_check_names_special_tokens_that_the_vocabulary_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qkv.load("demo-lm").save(tmp_path / "m")
    for lacking in ([], ["<nosuch>"]):
        (tmp_path / "m" / "special_tokens_map.json").write_text(json.dumps({"mask_token": "".join(lacking) or None}))
        assert main(["check", str(tmp_path / "m"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["lacking_tokens"] == lacking


def test_a_standard_input_that_cannot_be_read_is_told() -> None:
    where = os.open(os.devnull, os.O_WRONLY)
    done = subprocess.run([sys.executable, "-m", "qkv", "score", "demo-lm", "-", "--lang", "en"], stdin=where,
                          capture_output=True, text=True, check=False)
    os.close(where)
    assert (done.returncode, "standard input" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("limit", "asked", "want"),
    [("1", "4", "1"), ("3", "2,2", "2,2"), ("1", "2,2", "1"), ("0", "4", "4"), ("x", "4", "4")])
def test_no_more_threads_are_called_than_may_come(limit, asked, want, monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    assert main(["--version"]) == 0
    assert os.environ["OMP_NUM_THREADS"] == want
    assert "OMP_DYNAMIC" not in os.environ
