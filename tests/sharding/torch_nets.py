"""Networks in torch that tests name as ``tests.sharding.torch_nets:NAME``."""

import torch
from torch import nn


class LeNet5(nn.Module):
    """The network whose weights MindSpore saved in tests/data/checkpoints/lenet5."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, bias=False)
        self.conv2 = nn.Conv2d(6, 16, 5, bias=False)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer, a normalization, and two results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.embed(ids).transpose(1, 2)).transpose(1, 2) * scale
        return {"logits": self.head(hidden), "hidden": hidden}


class TwoInputs(nn.Module):
    def forward(self, image: torch.Tensor, scale: torch.Tensor, **options: bool) -> torch.Tensor:
        return image * scale.sum()


class AnyInputs(nn.Module):
    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return sum((other.sum() for other in others), first * 2)


class StatesInputs(LeNet5):
    example_inputs = ("x:n,1,32,32",)


def needs_argument(width: int) -> nn.Module:
    return nn.Linear(width, width)


def no_network() -> int:
    return 3


def fails() -> nn.Module:
    raise ValueError("bad\nweather")
