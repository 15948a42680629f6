"""The roofline lab: the rule, with numbers of a machine where it holds and of one where it does not."""

from qkv.labs import roofline
from qkv.labs.lab import Runs

GOOD = {
    "read_flops": 0.6,
    "write_flops": 0.05,
    "write_bytes": 0.8,
    "read_gain": 1.1,
    "write_gain": 9.0,
    "half_read": 1.0,
    "half_write": 1.9,
}


def word(**numbers):
    return roofline.judge(Runs(({**GOOD, **numbers},) * 3)).word


def test_the_rule():
    assert word() == "shown"
    assert word(read_gain=2.5) == "true only when"
    assert word(write_gain=1.5) == "not shown"
    assert word(write_flops=0.5) == "not shown"


def test_the_weights_are_larger_than_caches_are():
    from qkv.cost import count
    from qkv.labs.tiny import Tiny

    spec = Tiny(layers=roofline.LAYERS, width=roofline.WIDTH, heads=12, vocabulary=32).spec
    assert count(spec).weight_bytes("fp32") > 100e6
