"""Runs a streaming model frame by frame; the ranks keep its state from one frame to the next.

    python examples/streaming.py MODEL.onnx FRAMES.npy [RANKS]

The model has an input for a frame, and state: an input such as `state` whose next value is the output
`stateN`, as detectors of speech have it. FRAMES.npy holds frames one after another, (frames, batch, ...).
"""

import sys

import numpy as np

from launcher import start


def main() -> None:
    """Prints the first output's mean for each frame."""
    model, frames, *more = sys.argv[1:]
    with start(model, ranks=int(more[0]) if more else 2, launcher="local", allow_replicated=True) as group:
        name = group.inputs[0].name
        with group.session() as session:
            for number, frame in enumerate(np.load(frames)):
                results = session.predict({name: frame})
                print(number, float(next(iter(results.values())).mean()), flush=True)


if __name__ == "__main__":
    main()
