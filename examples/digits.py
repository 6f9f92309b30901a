"""Train a small network on digits, with NumPy alone, and survive the loss of any worker.

    strata run examples/digits.py --workers 4 --kill 1

The digits are generated from a 5 × 7 font, shifted, stretched and noised, so nothing is downloaded.
Each worker computes the gradient of its share of a step; `run.average` averages the gradients.
"""

import numpy as np

import strata

FONT = """
01110 00100 01110 01110 00010 11111 00110 11111 01110 01110
10001 01100 10001 10001 00110 10000 01000 00001 10001 10001
10011 00100 00001 00001 01010 11110 10000 00010 10001 10001
10101 00100 00010 00110 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""
SIDE = 14
HIDDEN = 96


def draw_digits(count, random):
    """Images of digits, and their labels."""
    rows = [row.split() for row in FONT.split("\n") if row]
    glyphs = np.array([[[int(p) for p in row[d]] for row in rows] for d in range(10)], np.float32)
    labels = random.integers(0, 10, count)
    images = np.zeros((count, SIDE, SIDE), np.float32)
    for image, label in zip(images, labels, strict=True):
        height, width = random.integers(8, 13), random.integers(6, 11)
        down = np.arange(height) * 7 // height
        across = np.arange(width) * 5 // width
        top, left = random.integers(0, SIDE - height + 1), random.integers(0, SIDE - width + 1)
        image[top : top + height, left : left + width] = glyphs[label][np.ix_(down, across)]
    images = images * random.uniform(0.5, 1.0, (count, 1, 1)) + random.normal(0, 0.25, images.shape)
    return (np.clip(images, 0, 1) * 255).astype(np.uint8)[..., None], labels


def new_model(random):
    """The initial weights, and the momentum of each."""
    sizes = [(SIDE * SIDE, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10)]
    model = {}
    for number, (inputs, outputs) in enumerate(sizes):
        scale = np.sqrt(2 / inputs)
        model[f"w{number}"] = (random.normal(size=(inputs, outputs)) * scale).astype(np.float32)
        model[f"b{number}"] = np.zeros(outputs, np.float32)
    return {"model": model, "momentum": {name: np.zeros_like(w) for name, w in model.items()}}


def forward(model, images):
    """The activations of every layer; the last one is the probabilities."""
    layers = [images.reshape(len(images), -1).astype(np.float32) / 255]
    for number in range(3):
        z = layers[-1] @ model[f"w{number}"] + model[f"b{number}"]
        layers.append(np.maximum(z, 0) if number < 2 else softmax(z))
    return layers


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def gradients(model, batch):
    """The gradient of the mean loss over a batch, and that loss."""
    layers, labels = forward(model, batch["image"]), batch["label"]
    count = max(len(labels), 1)
    chosen = layers[-1][np.arange(len(labels)), labels]
    slope = layers[-1].copy()
    slope[np.arange(len(labels)), labels] -= 1
    found = {}
    for number in (2, 1, 0):
        found[f"w{number}"] = layers[number].T @ slope / count
        found[f"b{number}"] = slope.sum(axis=0) / count
        slope = (slope @ model[f"w{number}"].T) * (layers[number] > 0)
    return found, float(-np.log(chosen + 1e-9).sum() / count)


def update(state, gradient, rate):
    """One step of gradient descent with momentum, in place."""
    for name, momentum in state["momentum"].items():
        momentum *= 0.9
        momentum -= rate * gradient[name]
        state["model"][name] += momentum


def unseen_digits():
    """A dataset of digits that are not trained on."""
    images, labels = draw_digits(2_000, np.random.default_rng(3))
    return strata.open_arrays({"image": images, "label": labels}, name="unseen")


def accuracy(model, batch):
    """The fraction of a batch that the network classifies correctly."""
    return np.mean(forward(model, batch["image"])[-1].argmax(axis=1) == batch["label"])


def main():
    images, labels = draw_digits(20_000, np.random.default_rng(1))
    digits = strata.open_arrays({"image": images, "label": labels}, name="digits")
    with strata.join() as run:
        state = run.restore(new_model(np.random.default_rng(2)))
        epochs = int(run.config.get("epochs", 64))
        rate = float(run.config.get("rate", 0.05))
        for batch in run.batches(digits, batch_size=64, epochs=epochs):
            with run.step() as step:  # applied by every worker or by none
                gradient, loss = run.average(gradients(state["model"], batch))
                update(state, gradient, rate)
                step.log(loss=loss)
            if step.applied and run.rank == 0 and run.steps % 100 == 0:
                print(f"step {run.steps}: loss {loss:.4f}")
        right = run.evaluate(unseen_digits(), lambda batch: accuracy(state["model"], batch))
        run.log(accuracy=right)
        if run.rank == 0:
            print(f"accuracy on 2,000 unseen digits: {right:.1%}")


if __name__ == "__main__":
    main()
