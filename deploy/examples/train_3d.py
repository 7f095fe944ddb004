"""A small GPT on all three axes: tensor parallel × pipeline parallel × data parallel replicas.

    reknit run --standalone --replicas 2 --pipe 2 --model 2 train_3d.py --steps 300

Each layer is shared by the workers along the model axis, by torch's own tensor parallelism; each stage of the pipeline
has some of the layers; each replica, a whole model, takes its share of the batch.  When a worker dies its replica is
made anew around those that are left, and the other replicas train on meanwhile.  Read it from top to bottom.
"""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

import reknit

VOCABULARY = 256  # one token for each value of a byte
HEAD_WIDTH = 16


# The text: blocks of `context` bytes, and for each byte the one that follows it.


def read_text(files, limit=4_000_000):
    """The bytes of all files, one after the other; by default the standard library's top-level modules."""
    files = files or sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(Path(file).read_bytes() for file in files)[:limit]), dtype=torch.uint8)


def cut_blocks(text, context):
    """Inputs and targets, each of shape (blocks, context)."""
    blocks = (len(text) - 1) // context
    end = blocks * context
    return text[:end].view(blocks, context), text[1 : end + 1].view(blocks, context)


# The model, as if there were one worker.


class Embed(nn.Module):
    """Bytes (batch, context) → vectors (batch, context, width)."""

    def __init__(self, width, context):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens):
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]


class Attention(nn.Module):
    """Causal self-attention, over as many heads as there are in what the three projections give."""

    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.projection = nn.Linear(width, width, bias=False)

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(attended.transpose(1, 2).flatten(-2))


class Perceptron(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    """A transformer's block: attention, then a multi-layer perceptron, each beside a residual path."""

    def __init__(self, width):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width)
        self.perceptron_norm, self.perceptron = nn.LayerNorm(width), Perceptron(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.perceptron(self.perceptron_norm(x))


class Stage(nn.Sequential):
    """One pipeline stage's part of the model: the first stage also embeds, the last also predicts."""

    def __init__(self, stage, stages, layers, width, context):
        super().__init__()
        if stage == 0:
            self.append(Embed(width, context))
        for _ in range(layers * stage // stages, layers * (stage + 1) // stages):
            self.append(Block(width))
        if stage == stages - 1:
            self.append(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY)))


# How a block is shared along the model axis: the first layer by its outputs (so each worker has some of the heads), the
# second by its inputs, and the sum over the workers is taken after that.  Norms and embeddings every worker has whole.

SHARED = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.projection": RowwiseParallel(),
    "perceptron.up": ColwiseParallel(),
    "perceptron.down": RowwiseParallel(),
}


def share_out(stage, mesh):
    """Keep this worker's part of each block.  All begin with the same whole model, so nothing is sent."""
    for block in stage:
        if isinstance(block, Block):
            parallelize_module(block, mesh, SHARED, src_data_rank=None)
    return stage


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=0, help="make each step take about this long, to measure with")
    parser.add_argument("--data", type=Path, nargs="+", metavar="FILE", help="text files to train on")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64, help=f"a multiple of {HEAD_WIDTH} × workers on the model axis")
    parser.add_argument("--context", type=int, default=64, help="bytes that a prediction can look back on")
    parser.add_argument("--global-batch", type=int, default=24)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of the whole model's gradient")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="go on from the newest one there; write more")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    return parser.parse_args(words)


def main(arguments):
    torch.set_num_threads(1)  # the workers of a laptop share its few cores
    inputs, targets = cut_blocks(read_text(arguments.data), arguments.context)
    job = reknit.join()
    stage, stages = job.coordinate.pipe, job.pipeline_size
    torch.manual_seed(arguments.seed + stage)  # the same along the model axis
    model = Stage(stage, stages, arguments.layers, arguments.width, arguments.context).to(job.device)
    share_out(model, job.replica_mesh("model"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    data = job.sampler(len(inputs), arguments.global_batch, arguments.micro_batch, seed=arguments.seed)
    job.register(model=model, optimizer=optimizer)
    if arguments.checkpoint is not None:
        job.checkpoint(arguments.checkpoint, every=arguments.checkpoint_every)

    def weighted_loss(logits, target):
        """What a micro-batch adds to the mean over the global batch: gradients are summed over all of them."""
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten().long()) * data.weight

    def build(share):
        """The schedule of this replica's micro-batches: built anew whenever their number or the peers change."""
        part = PipelineStage(model, share.stage, share.stages, share.device, group=share.group)
        return ScheduleGPipe(part, share.micro_batches, loss_fn=weighted_loss, scale_grads=False)

    pipeline = job.pipeline(build)

    # The loop: a membership change ends an attempt early, and the next one takes the step again.

    while job.step < arguments.steps:
        with job.attempt() as attempt:
            finish = time.monotonic() + arguments.step_ms / 1000
            batch = data.batch(job.step)
            tokens = [inputs[batch.indices].to(job.device).int()] if stage == 0 else []
            if stage == stages - 1:
                losses = []
                pipeline.step(*tokens, target=targets[batch.indices].to(job.device), losses=losses)
                job.log(loss=torch.stack(losses).sum().item())
            else:
                pipeline.step(*tokens)
            time.sleep(max(0.0, finish - time.monotonic()))
            attempt.commit(optimizer, clip_norm=arguments.clip)


if __name__ == "__main__":
    main(parse())
