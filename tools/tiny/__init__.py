"""Training of the built-in tiny checkpoint, from texts to a model card.

`python tools/train_tiny.py --help` lists the stages; each reads what the one before it wrote:

    prepare    texts of `sources` and `generated` -> tokenizer and token streams
    backbone   `model` on one GPU, quantised towards the end
    drafter    `drafter` on the frozen backbone: blocks, Markov head, confidence head
    plain      a plain transformer of equal size, for comparison
    export     release formats and names, config, measurements, model card
"""
