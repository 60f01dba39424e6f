"""Files become passages that a reader would have cut the same way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.semantic_search.errors import TextError
from examples.semantic_search.passages import (
    Passage,
    Text,
    folder_files,
    plain,
    project_files,
    project_folder,
    read_texts,
    split_markdown,
    split_text,
    split_texts,
)


def words(text: str) -> int:
    return len(text.split())


def markdown(text: str, limit: int = 50) -> list[tuple[str, str]]:
    return [(p.heading, p.text) for p in split_markdown(text, "file.md", limit, words)]


def test_sections_carry_the_headings_above_them():
    text = "Before.\n# A\none\n## B\ntwo\n### C\nthree\n## D ##\nfour\n# E\nfive"
    assert markdown(text) == [
        ("", "Before."),
        ("A", "one"),
        ("A > B", "two"),
        ("A > B > C", "three"),
        ("A > D", "four"),
        ("E", "five"),
    ]


def test_paragraphs_items_and_rows_of_a_section_are_packed_together():
    text = (
        "# A\nfirst line\nof a paragraph\n\n- an item\n  goes on\n- another\n\n"
        "| name | value |\n|---|---:|\n| a \\| b | 1 |\n"
    )
    assert markdown(text) == [
        ("A", "first line of a paragraph\nan item goes on\nanother\nname · value\na | b · 1")
    ]


def test_code_and_comments_are_excluded():
    text = (
        "one\n```python\n# no heading\nprint(1)\n```\ntwo\n~~~\n```\nstill code\n~~~\n"
        "<!-- nothing\nto see -->three\n````\n```\ninside\n```\n````\nfour"
    )
    assert markdown(text) == [("", "one\ntwo\nthree\nfour")]


def test_marks_are_removed_but_not_those_in_code():
    text = "**Bold**, *soft*, __also__ [a link](there.md), `**kwargs`, `a_b__c` and 2 * 3 * 4"
    assert plain(text) == "Bold, soft, also a link, **kwargs, a_b__c and 2 * 3 * 4"


def test_a_passage_ends_where_the_next_paragraph_would_not_fit():
    paragraphs = [" ".join([letter] * 4) for letter in "abc"]
    found = split_text("\n\n".join(paragraphs), "file.txt", 9, words)
    assert [p.text for p in found] == ["a a a a\nb b b b", "c c c c"]


def test_long_paragraphs_are_cut_between_sentences_then_between_words():
    sentences = "One two three. Four five. Six seven eight nine."
    assert [t for _, t in markdown(sentences, 5)] == [
        "One two three. Four five.",
        "Six seven eight nine.",
    ]
    assert [t for _, t in markdown("a b c d e f g", 3)] == ["a b c", "d e f", "g"]


def test_a_word_without_end_is_cut_into_characters():
    assert [p.text for p in split_text("x" * 25, "f.txt", 10, len)] == ["x" * 10, "x" * 10, "x" * 5]


def test_a_heading_that_leaves_no_room_is_dropped():
    found = markdown("# " + "long " * 20 + "\nshort text", 10)
    assert found == [("", "short text")]


def test_the_model_reads_the_headings_too():
    assert Passage("f.md", "A > B", "Text.").embedded == "A, B. Text."
    assert Passage("f.md", "A > B", "Text.").place == "f.md > A > B"
    assert Passage("f.txt", "", "Text.").embedded == "Text."


@given(st.text(alphabet="ab .#-|`\n*_[]()~<!>", max_size=200), st.integers(4, 30))
def test_no_passage_is_too_long_or_empty_whatever_the_text(text, limit):
    for split in (split_markdown, split_text):
        for passage in split(text, "file", limit, len):
            assert passage.text.strip()
            assert len(passage.embedded) <= limit


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=8), max_size=40))
def test_plain_text_loses_no_word(found):
    passages = split_text(" ".join(found), "file.txt", 20, len)
    assert " ".join(p.text for p in passages).split() == found


def test_our_documentation_is_found_and_cut():
    folder = project_folder()
    texts = read_texts(folder, project_files(folder))
    assert texts[0].name == "README.md"
    assert {"docs/runtime/index.md", "docs/decisions/index.md"} <= {t.name for t in texts}
    passages = split_texts(texts, 80, words)
    assert {t.name for t in texts} >= {p.file for p in passages}
    assert any("Events mark a point in a stream" in p.text for p in passages)
    assert max(words(p.embedded) for p in passages) <= 80


# ---- Errors --------------------------------------------------------------------------------------


def test_folders_are_searched_in_depth_for_text_files_alone(texts):
    names = [f.relative_to(texts).as_posix() for f in folder_files(texts)]
    assert names == ["animals/cats.md", "bread.txt"]


def test_a_folder_that_is_not_there_or_is_a_file_is_refused(tmp_path):
    with pytest.raises(TextError, match=r"no such folder\. Give one"):
        folder_files(tmp_path / "nothing")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(TextError, match=r"this is a file\. Give the folder"):
        folder_files(tmp_path / "a.txt")


def test_a_folder_without_text_files_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("pass")
    with pytest.raises(TextError, match=r"no \.md and \.txt files in it"):
        folder_files(tmp_path)


def test_files_without_sentences_are_refused():
    with pytest.raises(TextError, match="no sentences"):
        split_texts([Text("a.md", "```\ncode\n```\n\n---\n"), Text("b.txt", " \n\n")], 50, words)


def test_what_is_not_utf8_is_refused_with_the_place_and_a_way_out(tmp_path):
    file = tmp_path / "latin.txt"
    file.write_bytes("Grüße".encode("latin1"))
    with pytest.raises(TextError, match=r"latin\.txt: not UTF-8 at byte 2\.[^$]*iconv") as refusal:
        read_texts(tmp_path, [file])
    assert refusal.value.exit_code == 2


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfHello.")
    assert read_texts(tmp_path, [tmp_path / "a.txt"]) == [Text("a.txt", "Hello.")]


def test_what_the_system_refuses_to_read_is_named(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(TextError, match=r"folder\.txt: Is a directory\. It must be readable"):
        read_texts(tmp_path, [tmp_path / "folder.txt"])
