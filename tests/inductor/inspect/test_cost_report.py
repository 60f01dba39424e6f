"""What explain says about the cost of a plan, against what the card counts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest
import torch

import torch_spyre
from torch_spyre._inductor import config
from torch_spyre.show.plan_picture import residents


def half(*shape):
    return torch.randn(*shape, dtype=torch.float16).to("spyre")


def test_explain_and_the_counters_of_the_card_agree():
    x = half(512, 1024)
    torch._dynamo.reset()
    told = torch_spyre.explain(lambda x: torch.softmax(x, 0), x)
    compiled = torch.compile(lambda x: torch.softmax(x, 0))
    compiled(x)
    torch.spyre.reset_counters()
    compiled(x)
    counted = torch.spyre.counters()
    assert told.hbm_bytes == counted["hbm_read_bytes"] + counted["hbm_write_bytes"]
    assert told.lx_bytes == counted["lx_bytes"]
    assert told.device_time_us == pytest.approx(counted["device_time_us"])
    assert sum(op.ring_bytes for op in told.ops) == counted["ring_bytes"]


def test_compulsory_traffic_is_each_input_and_each_output_once():
    told = torch_spyre.explain(lambda x: torch.softmax(x, 0), half(512, 1024))
    assert told.compulsory_bytes == 2 * 512 * 1024 * 2
    assert told.hbm_bytes >= told.compulsory_bytes


def test_each_operation_has_splits_cores_operands_time_and_bound():
    told = torch_spyre.explain(lambda x, y: x @ y + 1, half(256, 512), half(512, 256))
    assert told.ops
    for op in told.ops:
        cores = 1
        for slices in op.splits.values():
            assert slices > 1
            cores *= slices
        assert cores == op.cores
        assert [o.writes for o in op.operands] == [False] * (len(op.operands) - 1) + [True]
        assert {o.place for o in op.operands} <= {"memory", "lx"}
        assert op.device_time_us > 0
        assert op.bound in ("compute", "memory", "lx", "ring", "start")
    text = str(told)
    assert "us modelled" in text and "x of the compulsory" in text


def test_the_picture_has_a_bar_for_each_operation_and_a_cell_for_each_core(tmp_path):
    told = torch_spyre.explain(lambda x: torch.softmax(x, -1), half(64, 256))
    picture = told.draw(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text() == picture
    root = ElementTree.fromstring(picture)
    titles = root.findall(".//{http://www.w3.org/2000/svg}title")
    bars = [t.text for t in titles if "bound by" in t.text]
    assert [text.split(":")[0] for text in bars] == [op.opfunc for op in told.ops]
    grey = [r for r in root.iter() if r.get("fill") == "#eeeeee"]
    assert len(grey) == sum(32 - op.cores for op in told.ops)


def test_the_cost_report_is_printed_on_demand(capfd):
    torch._dynamo.reset()
    with config.patch(dump_cost=True):
        torch.compile(lambda x: x * 3)(half(64, 128))
    printed = capfd.readouterr().err
    assert "cost of sdsc_" in printed and "compulsory" in printed and "mul" in printed


def test_the_map_of_scratchpads_shows_what_is_where_and_until_when():
    told = torch_spyre.explain(lambda t: torch.softmax(t, 0), half(64, 128))
    found = residents(told.ops)
    assert found and all(0 <= r.first <= r.last < len(told.ops) for r in found)
    for a, b in combinations(found, 2):
        together = min(a.last, b.last) - max(a.first, b.first)
        apart = a.address + a.size <= b.address or b.address + b.size <= a.address
        # One operation can read a place and write its result there.
        assert apart or together < 0 or (together == 0 and a.address == b.address)
    picture = told.draw()
    assert all(f"<title>{r.name}: {r.size} bytes" in picture for r in found)
    drawn = ElementTree.fromstring(picture)
    wide, high = (float(drawn.attrib[side]) for side in ("width", "height"))
    for box in drawn.iter("{http://www.w3.org/2000/svg}rect"):
        if not box.attrib["width"].endswith("%"):
            assert float(box.attrib.get("x", 0)) + float(box.attrib["width"]) <= wide
            assert float(box.attrib.get("y", 0)) + float(box.attrib["height"]) <= high
    only_map = told.draw(parts=("lx",))
    assert "time line" in picture and "time line" not in only_map and "scratchpad" in only_map
    with pytest.raises(ValueError, match="there are time, cores, lx"):
        told.draw(parts=("all",))
