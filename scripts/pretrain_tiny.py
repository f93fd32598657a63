"""Make the backbone `tiny`: a Qwen3 of under a million parameters, and the record of how.

    python scripts/pretrain_tiny.py --out DIR

The corpus (tiny_corpus.py) is drawn without end from one seed, so there are no epochs; the loss is
on answers only. The prompt is the library's own template, whose fixed pieces are one token each: a
prompt of `mini` is about 40 tokens long.
"""

import hashlib
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Annotated, cast

import torch
import typer
from tiny_corpus import draw
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from forever.data.prompts import Prompt
from forever.data.tasks import Example

EOS, PAD = "<|endoftext|>", "<|pad|>"
VOCABULARY = 1408
LENGTH = 512  # positions of the model; a prompt of `mini` needs 60
Row = tuple[list[int], int]  # the tokens, and how many of them are prompt


def template_pieces() -> list[str]:
    """The fixed text of the prompt, cut where the fields begin."""
    with_input = Prompt().parts(Example("", "", "x", ""))
    without = Prompt().parts(Example("", "", "", ""))
    head, tail = with_input[0].split("\n\n### Input:\n")
    return [head, f"\n\n### Input:\n{tail}", with_input[2], without[0]]


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE whose fields begin with a space: a word is one token everywhere."""
    rng = random.Random(f"tokenizer/{seed}")
    texts: list[str] = []
    for _ in range(40_000):
        example = draw(rng)
        texts.append(f"{example.instruction} {example.input} {example.output}")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    core.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("\n ", "\n"), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(template_pieces()),
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(piece, normalized=False) for piece in template_pieces()])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        model_max_length=LENGTH,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Two layers: few enough for one CPU core. Six heads: a question looks for one word of many."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        num_hidden_layers=2,
        intermediate_size=320,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=cast(int, tokenizer.eos_token_id),
        pad_token_id=cast(int, tokenizer.pad_token_id),
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def encode(examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> list[Row]:
    """Prompt and answer are encoded apart, as when the model is used; plain text has no prompt."""
    rows: list[Row] = []
    eos = cast(int, tokenizer.eos_token_id)
    for example in examples:
        head = tokenizer(Prompt().text(example) if example.instruction else "")["input_ids"]
        answer = tokenizer(example.output)["input_ids"]
        rows.append(([*head, *answer, eos], len(head)))
    return rows


def batches(
    rng: random.Random, tokenizer: PreTrainedTokenizerFast, size: int
) -> Iterator[list[Row]]:
    """Batches of rows of similar length, because padding costs as much as text."""
    while True:
        rows = encode([draw(rng) for _ in range(32 * size)], tokenizer)
        rows.sort(key=lambda row: len(row[0]))
        cuts = [rows[i : i + size] for i in range(0, len(rows), size)]
        rng.shuffle(cuts)
        yield from cuts


def answer_loss(model: Qwen3ForCausalLM, batch: list[Row]) -> torch.Tensor:
    """Mean cross-entropy of answers and their EOS; the head runs at these positions only."""
    width = max(len(tokens) for tokens, _ in batch)
    ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
    wanted_BT = torch.zeros(len(batch), width, dtype=torch.bool)
    for b, (tokens, prompt_length) in enumerate(batch):
        ids_BT[b, : len(tokens)] = torch.tensor(tokens)
        wanted_BT[b, max(prompt_length, 1) : len(tokens)] = True
    hidden_BTD = model.model(input_ids=ids_BT).last_hidden_state
    logits_NV = model.lm_head(hidden_BTD[:, :-1][wanted_BT[:, 1:]])
    return cross_entropy(logits_NV, ids_BT[:, 1:][wanted_BT[:, 1:]])


def pretrain(
    model: Qwen3ForCausalLM, stream: Iterator[list[Row]], steps: int, lr: float
) -> list[float]:
    """AdamW, 100 updates of warm-up, then a cosine to a twentieth of `lr`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(steps):
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / 100, 0.05 + 0.95 * cosine)
        loss = answer_loss(model, next(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 250 == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}  loss {fmean(losses[-250:]):.4f}  {seconds:.0f} s", flush=True)
    return losses


@torch.no_grad()
def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, rows: int = 2000
) -> float:
    """Share of fresh examples that are right in every token when the true answer is fed in."""
    model.eval()
    rng = random.Random(f"check/{seed}")
    right = 0
    for tokens, length in encode([draw(rng) for _ in range(rows)], tokenizer):
        if length:  # plain text has no prompt
            logits = model(input_ids=torch.tensor([tokens])).logits[0, length - 1 : -1]
            right += logits.argmax(-1).tolist() == tokens[length:]
    return right / rows


def save(
    out: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, record: dict
) -> None:
    """The folder that `from_pretrained` reads, and a README with the record."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=False, **ids)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    record["sha256"] = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    record["parameters"] = sum(p.numel() for p in model.parameters())
    template = Path(__file__).with_name("tiny_readme.md").read_text(encoding="utf-8")
    (out / "README.md").write_text(template.format(vocabulary=VOCABULARY, **record))
    print(json.dumps(record, indent=1))


def main(
    out: Annotated[Path, typer.Option()],
    steps: int = 3500,
    batch_size: int = 64,
    lr: float = 4e-3,
    seed: int = 0,
    threads: int = 2,
) -> None:
    """Train, check and save the backbone."""
    record: dict = {"steps": steps, "batch_size": batch_size, "lr": lr, "seed": seed}
    torch.set_num_threads(threads)
    started = time.monotonic()
    tokenizer = make_tokenizer(seed)
    model = make_model(tokenizer, seed)
    stream = batches(random.Random(f"corpus/{seed}"), tokenizer, batch_size)
    losses = pretrain(model, stream, steps, lr)
    record["minutes"] = (time.monotonic() - started) / 60
    record |= {"threads": threads, "loss": fmean(losses[-250:])}
    record["accuracy"] = accuracy(model, tokenizer, seed)
    save(out, model, tokenizer, record)


if __name__ == "__main__":
    typer.run(main)
