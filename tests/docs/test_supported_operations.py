"""docs/supported_operations.md is what the command makes of the tables."""

from __future__ import annotations

from docs.generate import supported_operations
from torch_spyre.opfuncs import OPFUNCS


def test_the_page_is_up_to_date(script):
    # In a process of its own: other tests register operations.
    script(
        """
        import sys
        from docs.generate.supported_operations import main
        sys.exit(main(["--check"]))
        """
    )


def test_every_opfunc_has_a_row_with_its_meaning():
    text = supported_operations.PAGE.read_text()
    for name, row in OPFUNCS.items():
        assert f"| `{name}` " in text
        assert supported_operations._meaning(row)


def test_meanings_are_written_as_pytorch_would():
    meaning = supported_operations._meaning
    assert meaning(OPFUNCS["realdiv"]) == "`x / y`"
    assert meaning(OPFUNCS["neg"]) == "`-x`"
    assert meaning(OPFUNCS["where3"]) == "`torch.where(c != 0, x, y)`"
    assert meaning(OPFUNCS["topkindex"]) == "`torch.topk(x, k, d)[1]`"


def test_an_outdated_page_is_found(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(supported_operations, "page", lambda: "new\n")
    file = tmp_path / "page.md"
    assert supported_operations.main(["--check", str(file)]) == 1
    assert supported_operations.main([str(file)]) == 0
    assert supported_operations.main(["--check", str(file)]) == 0
    assert "is outdated: run python -m" in capsys.readouterr().err
