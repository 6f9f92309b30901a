"""Train with Lightning's Trainer: one argument, `strategy=strata.torch.LightningStrategy(run)`.

    strata run examples/lightning_digits.py --workers 2 --kill 1

Needs lightning. Module, DataLoaders and Trainer are those of any script for Lightning. After a loss
`fit` continues after the last complete step; the checkpoints are Strata's.
"""

import numpy as np
import torch
import torch.nn.functional as F
from digits import draw_digits
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from torch_digits import new_model, pixels

import strata
import strata.torch


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = new_model()

    def training_step(self, batch, number):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, number):
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            accuracy = self.trainer.callback_metrics["accuracy"].item()
            self.print(f"epoch {self.current_epoch}: accuracy {accuracy:.1%}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


def digits(count, seed):
    images, labels = draw_digits(count, np.random.default_rng(seed))
    return TensorDataset(pixels(images), torch.from_numpy(labels))


def main():
    torch.set_num_threads(1)
    with strata.join() as run:
        trainer = Trainer(
            strategy=strata.torch.LightningStrategy(run),
            max_epochs=int(run.config.get("epochs", 12)),
            devices=1,  # each worker is a process of its own
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,  # `strata run` shows and records what the module logs
        )
        train = DataLoader(digits(8_000, 1), batch_size=64, shuffle=True)
        trainer.fit(Classifier(), train, DataLoader(digits(1_000, 2), batch_size=250))
        if run.rank == 0:
            print(f"trained for {trainer.global_step} steps")


if __name__ == "__main__":
    main()
