"""Semantic search on the card: `python -m examples.semantic_search [FOLDER] [--question TEXT]`.

In: a folder of Markdown and text files, questions. Out: the passages that answer them best, found
with all-MiniLM-L6-v2 compiled for `spyre`, and a report of how well and how fast that went.

    passages.py     files to passages: by headings and paragraphs, at most 128 tokens
    encoder.py      the model: loading, compiling, passages to embeddings in batches
    ranking.py      scores, best passages, and whether two rankings are the same
    anatomy.py      what the compiled model consists of: operations, host steps, bytes
    index.py        embeddings of earlier runs
    measuring.py    what is measured: agreement with the CPU, speeds
    report.py       ... and how it is told
    progress.py     a bar, also where there is no terminal
    command.py      the command: arguments, order of things, exit codes
"""
