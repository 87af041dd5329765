"""The other side of imago_bench_training: the same networks in PyTorch.

Lines on standard input, one answer line each on standard output:
  load CASE FILE   weights, inputs and targets as float32, one after the other -> "loaded"
  step COUNT       as many training steps                                      -> "SECONDS LOSS", of all, of the last
"""

import sys
import time

import torch
import torch.nn.functional as F


class Mlp(torch.nn.Module):
    batch = 128
    inputs, targets = (784,), ()

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(i, o, bias=False) for i, o in ((784, 512), (512, 512), (512, 10)))

    def forward(self, x):
        x = F.relu(self.layers[0](x))
        x = F.relu(self.layers[1](x))
        return self.layers[2](x)


class Cnn(torch.nn.Module):
    batch = 64
    inputs, targets = (1, 28, 28), ()

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
        self.second = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.third = torch.nn.Linear(32 * 7 * 7, 128, bias=False)
        self.last = torch.nn.Linear(128, 10, bias=False)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        x = F.relu(self.third(x.flatten(1)))
        return self.last(x)


class RmsNorm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(torch.nn.Module):
    """Parameters stand in the order of imago's array: matrices of q, k and v as one, of the output, then biases."""

    def __init__(self, width, heads, steps):
        super().__init__()
        self.heads, self.values = heads, width // heads
        self.projection = torch.nn.Parameter(torch.empty(3 * width, width))
        self.output = torch.nn.Parameter(torch.empty(width, width))
        self.projection_bias = torch.nn.Parameter(torch.empty(3 * width))
        self.output_bias = torch.nn.Parameter(torch.empty(width))
        frequencies = 10000.0 ** (-torch.arange(0, self.values, 2, dtype=torch.float64) / self.values)
        angles = torch.arange(steps, dtype=torch.float64)[:, None] * frequencies
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        self.mask = torch.full((steps, steps), float("-inf")).triu(1)

    def turn(self, x):
        low, high = x.chunk(2, -1)
        return torch.cat((low * self.cos - high * self.sin, low * self.sin + high * self.cos), -1)

    def forward(self, x):
        batch, steps, width = x.shape
        rows = F.linear(x, self.projection, self.projection_bias)
        q, k, v = rows.view(batch, steps, 3, self.heads, self.values).permute(2, 0, 3, 1, 4)
        scores = self.turn(q) @ self.turn(k).transpose(-1, -2) * self.values ** -0.5 + self.mask
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, steps, width)
        return F.linear(attended, self.output, self.output_bias)


class SwiGlu(torch.nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        shapes = ((inner, width), (inner, width), (width, inner), (inner,), (inner,), (width,))
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.empty(shape)) for shape in shapes)

    def forward(self, x):
        gate, up, down, gate_bias, up_bias, down_bias = self.parts
        return F.linear(F.silu(F.linear(x, gate, gate_bias)) * F.linear(x, up, up_bias), down, down_bias)


class Decoder(torch.nn.Module):
    batch = 16
    inputs, targets = (128,), (128,)

    def __init__(self):
        super().__init__()
        width, blocks = 256, 4
        self.embedding = torch.nn.Embedding(256, width)
        self.layers = torch.nn.ModuleList()
        for _ in range(blocks):
            self.layers += [RmsNorm(width), Attention(width, 4, 128), RmsNorm(width), SwiGlu(width, 688)]
        self.norm = RmsNorm(width)
        self.head = torch.nn.Linear(width, 256, bias=False)

    def forward(self, x):
        x = self.embedding(x.long())
        for i in range(0, len(self.layers), 2):
            x = x + self.layers[i + 1](self.layers[i](x))
        return self.head(self.norm(x))


CASES = {
    "mlp-sgd": (Mlp, lambda parameters: torch.optim.SGD(parameters, lr=0.01)),
    "mlp-adam": (Mlp, lambda parameters: torch.optim.Adam(parameters, lr=0.001)),
    "cnn-sgd": (Cnn, lambda parameters: torch.optim.SGD(parameters, lr=0.01)),
    "decoder-adamw": (Decoder, lambda parameters: torch.optim.AdamW(parameters, lr=0.001, weight_decay=0.01)),
}


class Training:
    def __init__(self, case, path):
        module, optimizer = CASES[case]
        self.module = module()
        values = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.float32)
        with torch.no_grad():
            for parameter in self.module.parameters():
                taken, values = values[:parameter.numel()], values[parameter.numel():]
                parameter.copy_(taken.view_as(parameter))
        inputs = torch.Size((module.batch, *module.inputs))
        self.x = values[:inputs.numel()].view(inputs).clone()
        self.y = values[inputs.numel():].clone().long()
        self.optimizer = optimizer(self.module.parameters())

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.module(self.x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def blas():
    for line in open("/proc/self/maps"):
        if "blas" in line or "mkl_rt" in line:
            return line.split()[-1].rsplit("/", 1)[-1]
    return "unknown BLAS"


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.ones(8, 8) @ torch.ones(8, 8)
    print(f"PyTorch {torch.__version__} with {blas()}", flush=True)
    training = None
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "load":
            training = Training(*arguments)
            print("loaded", flush=True)
        else:
            start = time.perf_counter()
            for _ in range(int(arguments[0])):
                loss = training.step()
            print(time.perf_counter() - start, loss, flush=True)


main()
