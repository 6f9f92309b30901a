"""Train an image classifier: a Dataset of your own, augmentation, validation, the best checkpoint.

    strata run examples/classifier.py --workers 2 --kill 1
    strata goodput classifier-1 --data ...           # validation is a class of its own

`run.loader` takes the place of a DataLoader, for any Dataset with `__len__` and `__getitem__`. Each
sample is trained once per epoch, whatever happens to the workers. Before each sample the random
generators of `random`, NumPy and torch are seeded from its position in the training: so a sample
that is read again after a loss, or by another worker, is augmented in the same way, and in another
way in the next epoch. Generators that the Dataset owns (`np.random.default_rng()`) are not seeded.
"""

import numpy as np
import torch
import torch.nn.functional as F
from digits import draw_digits
from torch import nn
from torch.utils.data import Dataset

import strata
import strata.torch


class Digits(Dataset):
    """Images of digits with their labels; training images are shifted, dimmed and noised."""

    def __init__(self, count, seed, augment):
        self.images, self.labels = draw_digits(count, np.random.default_rng(seed))
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).float() / 255
        if self.augment:
            down, across = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, (down, across), dims=(1, 2)) * (0.7 + 0.6 * torch.rand(1))
            image = image + 0.1 * torch.randn_like(image)
        return image, int(self.labels[index])


def new_model():
    """A small convolutional network. GroupNorm: a result does not depend on the worker's share."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(32 * 9, 10),
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # The checkpoint with the highest validation accuracy is kept, beside the newest ones.
    with strata.join(keep_best="max:accuracy") as run:
        count = int(run.config.get("images", 8_000))
        train_set, valid_set = Digits(count, 1, augment=True), Digits(1_000, 2, augment=False)
        model = new_model().to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        strata.torch.data_parallel(run, model)
        run.restore(model=model, optimizer=optimizer, schedule=schedule)

        @torch.no_grad()
        def score(batch):
            images, labels = (each.to(run.device) for each in batch)
            scores = model.eval()(images)
            right = (scores.argmax(1) == labels).float().mean()
            return {"valid_loss": F.cross_entropy(scores, labels), "accuracy": right}

        loader = run.loader(train_set, global_batch=128, shuffle=True, num_workers=1)
        for epoch in run.epochs(int(run.config.get("epochs", 4))):
            model.train()
            for images, labels in loader:
                with run.step() as step:
                    scores = model(images.to(run.device))
                    loss = F.cross_entropy(scores, labels.to(run.device))
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    step.log(loss=loss, lr=schedule.get_last_lr()[0])
            schedule.step()  # code between two loops runs once per epoch, also after a recovery
            found = run.evaluate(valid_set, score)  # each worker scores a share; all get the mean
            run.log(found)
            run.save()  # the model that was just validated
            if run.rank == 0:
                wrong, shown = 1 - found["accuracy"], found["valid_loss"]
                print(f"epoch {epoch}: validation loss {shown:.3f}, {wrong:.1%} wrong")


if __name__ == "__main__":
    main()
