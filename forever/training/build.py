"""How a learner is made: backbone, what the method puts around it, what is trained."""

from typing import Any

import torch

from forever.config.run import RunConfig
from forever.data.encoding import Encoder
from forever.data.prompts import make_prompt
from forever.models.adapter import begun
from forever.models.backbone import load, recompute_layers
from forever.models.device import compute_repeatably
from forever.models.loading import limits_of
from forever.models.parameters import FlatParameters
from forever.text import complain
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.method import Method
from forever.world import World


def build_learner(
    config: RunConfig,
    method: Method[Any],
    world: World,
    micro_batch: int | None = None,
    tasks: int = 1,
) -> Learner:
    """Load the backbone, let the method put around it what it trains, and flatten that.

    Args:
        method: that of the configuration (`forever.methods.registry.build_method`).
        micro_batch, tasks: see `Learner`.
    """
    compute_repeatably(world.device)
    full = config.model.tuning == "full"
    half = {"float32": False, "bfloat16": True, "auto": world.device.type == "cuda"}
    bf16 = half[config.model.dtype]
    # Weights that are trained stay fp32; full fine-tuning then computes in bf16 by autocast.
    dtype = torch.bfloat16 if bf16 and not full else torch.float32
    backbone = load(config.model.name, dtype, world.device)
    if full:
        backbone.model.requires_grad_(True)
    else:
        method.build(backbone.model, begun(config), tasks)
    if config.model.gradient_checkpointing:
        recompute_layers(backbone.model)
    named = backbone.model.named_parameters()
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    # Are the examples of a batch packed, which needs a model that supports it?
    packed = config.model.packing == "shared" and not backbone.unpackable
    if config.model.packing == "shared" and not packed:
        complain(f"{config.model.name}: batches are padded, {backbone.unpackable}")
    learner = Learner(
        config=config,
        memory=Memory(config.memory.fraction, config.optim.batch_size, config.seed),
        backbone=backbone,
        encoder=Encoder(
            backbone.tokenizer,
            config.model.max_length,
            limits_of(backbone.model),
            make_prompt(config.data, backbone.tokenizer),
            ends=backbone.model.generation_config.eos_token_id,
        ),
        parameters=FlatParameters(trained),
        world=world,
        micro_batch=micro_batch,
        packed=packed,
        autocast=bf16 and full,
        tasks=tasks,
    )
    learner.gate = lambda examples: method.gate(learner, examples)
    return learner
