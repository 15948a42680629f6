"""What stands round the model in a program: imports, the loader of its weights, and a way to run it."""

import json
import re

from qkv import spec as parts
from qkv.specialize import layout
from qkv.specialize.naming import Naming

IMPORTS = (
    ("json", "import json"), ("math", "import math"), ("re", "import re"), ("sys", "import sys"),
    ("Path", "from pathlib import Path"), ("", ""), ("torch", "import torch"), ("F", "import torch.nn.functional as F"),
    ("load_file", "from safetensors.torch import load_file"), ("Tensor", "from torch import Tensor, nn"),
)

REFUSAL = 'f"text needs the package tokenizers and {directory}/tokenizer.json ({e}); ids do not: 1 2 3"'


def print_imports(text: str) -> str:
    """The imports that a text needs."""
    words = set(re.findall(r"\w+", re.sub(r'"[^"\n]*"', "", text))) | {""}
    return "\n".join(line for name, line in IMPORTS if name in words)


def print_table(name: str, words: dict[str, str]) -> list[str]:
    """A dict of words, as many on a line as fit."""
    entries = [f"{json.dumps(ours)}: {json.dumps(theirs)}," for ours, theirs in words.items()]
    rows = layout.fill_rows(entries, lambda row: len(" ".join(row)) + 4 <= layout.WIDE)
    return [f"{name} = {{", *("    " + " ".join(row) for row in rows), "}"]


def print_loader(naming: Naming) -> list[str]:
    """The table of names and the function that fills a model by it."""
    words = naming.segments | naming.exceptions
    name = "name" + f'.removeprefix("{naming.prefix}")' * bool(naming.prefix)
    name += "".join(f'.replace(".{old}", ".{new}")' for old, new in naming.aliases.items())
    stored = [f"    stored |= {{{name}: tensor for name, tensor in load_file(file).items()}}"]
    if name == "name":
        stored = ["    stored |= load_file(file)"]
    elif len(stored[0]) > 112:
        stored = ["    for name, tensor in load_file(file).items():", f"        stored[{name}] = tensor"]
    lines = [
        "def load(directory: str) -> Transformer:",
        '    """The model with the weights of a Hugging Face directory: safetensors, in one file or in several."""',
        "    stored, state = {}, {}",
        '    for file in Path(directory).glob("*.safetensors"):',
        *(f"    {line}" for line in stored),
        '    with torch.device("meta"):',
        "        model = Transformer()",
        f"    for name{', tensor' * bool(naming.rows)} in model.state_dict(){'.items()' * bool(naming.rows)}:",
        *(f"        {line}" for line in find_tensor(naming)),
        "    model.load_state_dict(state, assign=True)",
        "    return model.eval()",
    ]
    text = "\n".join(line for long in lines for line in layout.wrap(long.lstrip(), len(long) - len(long.lstrip())))
    return ["\n".join(print_table("NAMES", words)) + f"\n\n\n{text}"] if words else [text]


def find_tensor(naming: Naming) -> list[str]:
    """The lines that put the tensor of `name` into the state."""
    key, lines = 'NAMES.get(word, word) for word in name.split(".")', list[str]()
    key = f'".".join(filter(None, ({key})))' if "" in naming.segments.values() else f'".".join({key})'
    if not naming.segments:
        key = "name"
    if any("*" in k for k in naming.exceptions):
        lines = [f'key = NAMES.get(re.sub(r"\\d+", "*", name), {key})',
                 'key = key.replace("*", "".join(re.findall(r"\\d+", name)))']
        key = "key"
    elif naming.exceptions:
        key = f"NAMES.get(name, {key})"
    if any("|" in v for v in naming.exceptions.values()):
        key = f'next(key for key in {key}.split("|") if key in stored)'
    changed = transform(naming)
    if not changed:
        shaped = ".view(tensor.shape)  # one bias is stored as a row" if naming.rows else ""
        if len(key) > 88:
            lines, key = [*lines, f"key = {key}"], "key"
        return [*lines, f"state[name] = stored[{key}]{shaped}"]
    return [*lines, *[f"key = {key}"] * (key != "key"), *changed]


def transform(naming: Naming) -> list[str]:
    """The lines that make their tensor ours, none where it is."""
    lines = list[str]()
    if naming.flipped:
        ends = naming.flipped
        test = json.dumps(ends)[1:-1] if len(ends) == 1 else f"({json.dumps(ends)[1:-1]})"
        lines += [f"if key.endswith({test}):", "    tensor = tensor.T.contiguous()  # stored in x out"]
    if naming.parts:
        count, listed = len(naming.parts), f"({json.dumps(naming.parts)[1:-1]})"
        lines += ['module = name.split(".")[-2]', f"if module in {listed}:  # stored as one tensor"]
        if naming.woven:
            lines.append(f"    tensor = tensor.unflatten(0, (HEADS, {count}, -1)).transpose(0, 1).flatten(0, 2)")
        lines.append(f"    tensor = tensor.chunk({count})[{listed}.index(module)]")
    if naming.stacked:
        each = 'torch.stack([stored[one] for one in every]) if "#" in key else stored[key]'
        first = 'every = [key.replace("#", str(i)) for i in range(EXPERTS)]'
        return [first, *([f"tensor = {each}", *lines, "state[name] = tensor"] if lines else [f"state[name] = {each}"])]
    return ["tensor = stored[key]", *lines, "state[name] = tensor"] if lines else []


def print_main(s: parts.Spec, *, free: bool, blanks: bool) -> list[str]:
    """The function that runs the model on a prompt, and the call of it."""
    writes = bool(s.decoder and s.head)
    what = "a prompt and what follows it, the likeliest token each time" if writes else "what the model says of a text"
    if writes and s.encoder:
        what = "what the model writes for a source, the likeliest token each time"
    lines = [
        "@torch.inference_mode()",
        "def main(directory: str, *words: str) -> None:",
        f'    """Print {what}: token ids, or text by tokenizer.json."""',
        "    model, tokenizer = load(directory), None",
        "    if not all(word.isdigit() for word in words):",
        "        try:",
        "            from tokenizers import Tokenizer",
        '            tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")',
        "        except Exception as e:",
        f"            sys.exit({REFUSAL})",
        '    ids = tokenizer.encode(" ".join(words)).ids if tokenizer else [int(word) for word in words]',
        *(f"    {line}" for line in (write_on(s, free=free, blanks=blanks) if writes else read_once(s))),
        "",
        "",
        'if __name__ == "__main__":',
        "    main(*sys.argv[1:])",
    ]
    return ["\n".join(lines)]


def read_once(s: parts.Spec) -> list[str]:
    """The lines that print what an encoder says."""
    given = "torch.tensor([ids])" + ", torch.zeros(1, len(ids), dtype=torch.long)" * bool(s.stack.segments)
    if s.head:
        return ["# the likeliest token at each place", f"ids = model({given})[0].argmax(-1).tolist()",
                "print(tokenizer.decode(ids) if tokenizer else ids)"]
    return [f"print(model{'.classify' * bool(s.labels)}({given})[0].tolist())"]


def write_on(s: parts.Spec, *, free: bool, blanks: bool) -> list[str]:
    """The greedy loop."""
    lines = ['config = json.loads(Path(directory, "config.json").read_text())'] if s.encoder or free else []
    call, count = "model(torch.tensor([ids]))", "50"
    if s.encoder:
        lines.append('memory, ids = model.encode(torch.tensor([ids])), [config["decoder_start_token_id"]]')
        call = "model(torch.tensor([ids]), memory)"
    elif free:
        lines += ["prefix_len = torch.tensor([len(ids)])" + "  # the prompt ends with the blank to fill" * blanks,
                  'ids += [config["decoder_start_token_id"]] if "decoder_start_token_id" in config else []',
        ]
        call = f"model(torch.tensor([ids]), prefix_len{', prefix_len - 1' * blanks})"
    if s.stack.positions and s.stack.positions.kind == "learned":
        count = "min(50, POSITIONS - len(ids))"
    if s.encoder:
        lines.append('while len(ids) < 50 and ids[1:][-1:] != [config.get("eos_token_id")]:')
        lines += [f"    logits = {call}[0, -1]  # V",
                  '    logits[config.get("pad_token_id", ids[0])] = -torch.inf  # padding is never said',
                  "    ids.append(int(logits.argmax()))"]
    else:
        lines += [f"for _ in range({count}):", f"    ids.append(int({call}[0, -1].argmax()))"]
    return [*lines, "print(tokenizer.decode(ids) if tokenizer else ids)"]
