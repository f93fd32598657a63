"""Examples that a language model writes (SSR): how they are drawn, read and filtered."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from forever.config.methods.replay import SsrConfig
from forever.data.encoding import Encoded
from forever.data.tasks import Example, Task
from forever.evaluation import decoding
from forever.evaluation.decoding import Sampling
from forever.models import lora
from forever.seeding import derive
from forever.training.learner import Learner

# Every input of the Long Sequence benchmark ends so; the written inputs would, too.
_SUFFIX = "\nAnswer:"
# Candidates for each example that is kept. Few pairs are drawn again until there are enough.
_CANDIDATES = 5
_TRIES = 60


def icl_prompts(demos: Sequence[Example]) -> list[tuple[str, str]]:
    """Make a prompt for every ordered pair of `demos`: two worked examples, then an open input.

    Each has its instruction, which is the first example's, and its text. A single demo makes a
    prompt alone.
    """
    prompts: list[tuple[str, str]] = []
    for pair in list(permutations(demos, 2)) or [tuple(demos)]:
        instruction = pair[0].instruction
        text = f"{instruction.strip()}\n\n"
        for demo in pair:
            text += f"Input: {demo.input.strip()}\nOutput: {demo.output.strip()}\n\n"
        prompts.append((instruction, text + "Input:"))
    return prompts


def continuations(
    learner: Learner, prompts: Sequence[tuple[str, int]], config: SsrConfig
) -> list[str]:
    """Sample a continuation of each text by its own seed, in order, on all ranks together."""
    how = Sampling(config.temperature, config.top_p, 0, config.repetition_penalty)

    def write(share: list[tuple[str, int]]) -> list[str]:
        encoded: list[Encoded] = []
        seeds: list[int] = []
        limits: list[int] = []
        for text, seed in share:
            encoded.append(learner.encoder.encode_text(text, config.max_tokens))
            seeds.append(seed)
            limits.append(max(1, config.max_tokens - len(encoded[-1].prompt)))
        return decoding.sample(learner.backbone, encoded, seeds, limits, how)

    return learner.world.spread(prompts, write)


def parse_icl(continuation: str) -> list[tuple[str, str]]:
    """Read (input, output) from each piece with text on both sides of a single "Output:"."""
    pairs: list[tuple[str, str]] = []
    for piece in continuation.split("Input:"):
        parts = [part.strip() for part in piece.split("Output:")]
        if len(parts) == 2 and all(parts):
            pairs.append((parts[0], parts[1]))
    return pairs


def candidates(learner: Learner, task: Task, config: SsrConfig) -> list[Example]:
    """Let the base model make up inputs, parse and filter them; their outputs are left out."""
    demos = learner.memory.choose(task, config.demos)
    suffix = _SUFFIX if all(demo.input.endswith(_SUFFIX) for demo in demos) else ""
    demos = [replace(demo, input=demo.input.removesuffix(suffix)) for demo in demos]
    prompts = icl_prompts(demos)
    wanted = _CANDIDATES * learner.memory.quota(len(task.train))
    seen = {example.input.removesuffix(suffix).strip() for example in task.train}
    written: list[Example] = []
    for turn in range(max(config.samples, _TRIES // len(prompts))):
        if turn >= config.samples and len(written) >= wanted:
            break
        seeded: list[tuple[str, int]] = []
        for i, (_, text) in enumerate(prompts):
            seeded.append((text, derive(learner.config.seed, "ssr", task.name, i, turn)))
        with lora.disabled(learner.backbone.model):
            texts = continuations(learner, seeded, config)
        for (instruction, _), text in zip(prompts, texts, strict=True):
            for body, output in parse_icl(text):
                if body not in seen and _fits(learner, config, instruction, body, output):
                    seen.add(body)
                    name = f"{task.name}/written/{len(written)}"
                    written.append(Example(name, instruction, body + suffix, ""))
    return written


def _fits(learner: Learner, config: SsrConfig, definition: str, body: str, output: str) -> bool:
    """Tell whether a written example passes the filters on length, in tokens."""
    count = learner.encoder.count
    if count(f"{definition} {body}") > config.max_prompt or count(output) > config.max_output:
        return False
    return 1 < count(body) <= config.max_input
