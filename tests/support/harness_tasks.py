"""Two local tasks of lm-evaluation-harness, one of answers to choose from and one of texts to go on with."""

import json
import random
from importlib import import_module

NAMES, FOUNDS = ("cat", "dog", "fox", "girl", "boy", "bird"), ("ball", "book", "hat", "lamp", "cup", "box")
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
"""
CHOICE = """output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WRITE = """output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: [".", "\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""
ROLL = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} {{choices[answer]}}."
metric_list: [{metric: word_perplexity}]
"""


def write_tasks(folder, count: int) -> None:
    """The tasks `choose`, `write` and `roll` of `count` items, in a folder for the harness's include_path."""
    draw, rows = random.Random(0), []
    for _ in range(count):
        name, words = draw.choice(NAMES), draw.sample(FOUNDS, 3)
        question = f"The {name} saw a {words[0]} and a {words[1]} in the garden. The {name} took the"
        rows.append({"question": question, "choices": words, "answer": draw.randrange(3)})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, rest in (("choose", CHOICE), ("write", WRITE), ("roll", ROLL)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, path=folder / "rows.jsonl") + rest)


def run_tasks(folder, model: str, args: dict, tasks=("choose", "write", "roll")) -> tuple[dict, list]:
    """The harness's results, and what each item got, in their order."""
    lm_eval = import_module("lm_eval")
    manager = import_module("lm_eval.tasks").TaskManager(include_path=str(folder))
    found = lm_eval.simple_evaluate(model=model, model_args=args, tasks=list(tasks), task_manager=manager,
                                    bootstrap_iters=0, log_samples=True)
    items = [item["filtered_resps"] for task in tasks for item in sorted(found["samples"][task],
                                                                         key=lambda item: item["doc_id"])]
    return {task: found["results"][task] for task in tasks}, items
