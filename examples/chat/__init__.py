"""A conversation with a language model on the card: `python -m examples.chat [PROMPT]`.

In: prompts, as an argument, typed or piped. Out: answers of SmolLM2-135M-Instruct with its real
weights, as they are made; what each cost; and whether the CPU would have said the same.

    weights.py        the model: from the package that has it to files that load fast
    static_cache.py   the cache of keys and values, written where the caller says
    decoder.py        tokens in, logits of the next one out; what is known is not computed again
    programs.py       the decoder's two programs, compiled once and kept
    conversation.py   who said what: messages, and the tokens of them
    streaming.py      tokens to text, while they come
    measuring.py      an answer and what it cost; the card against the CPU
    agreement.py      an answer against the tokens of the CPU in float32
    report.py         ... and how all that is told
    command.py        the command: arguments, order of things, exit codes
"""
