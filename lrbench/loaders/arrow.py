"""Splits on disk: Arrow streams as `datasets` writes them, mapped into memory to be read."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from lrbench.loaders.blocks import Block, BlockSplit


class SplitWriter:
    """Writes one split: columns `tokens` (of a second view `tokens_2`) and `label`. A context manager.

    The file also opens with `datasets.Dataset.from_file`.
    """

    def __init__(self, path: Path) -> None:
        from datasets.arrow_writer import ArrowWriter  # seconds to import, and only a build needs it

        # a stream of our own, as a path would be taken for a URL where it holds "::"
        self._writer = ArrowWriter(stream=pa.OSFile(str(path), "wb"))

    def write(self, block: Block) -> None:
        """Append the examples of a block, which may be none; all blocks of a split hold tokens of the same type."""
        table = _table(block)
        self._writer.write_table(table, writer_batch_size=max(1, table.num_rows))

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._writer.finalize()
        else:
            self._writer.close()


def write_splits(folder: Path, names: Iterable[str], blocks: Iterable[tuple[str, Block]]) -> Mapping[str, Path]:
    """Write blocks, each with the name of its split and in any order, to a file for each of the names."""
    paths = {name: folder / f"{name}.arrow" for name in names}
    with ExitStack() as stack:
        writers = {name: stack.enter_context(SplitWriter(path)) for name, path in paths.items()}
        for name, block in blocks:
            writers[name].write(block)
    return paths


def open_split(path: Path) -> BlockSplit:
    """Map a file written by `SplitWriter`; tokens are read when they are looked at, and cannot be written."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        return BlockSplit([_block(batch) for batch in stream])


def _table(block: Block) -> pa.Table:
    columns: dict[str, Any] = {}
    for number, (tokens, lengths) in enumerate(zip(block.tokens, block.lengths, strict=True), 1):
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
        columns[_column(number)] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    return pa.table({**columns, "label": pa.array(block.labels, pa.int64())})


def _block(batch: pa.RecordBatch) -> Block:
    views = [batch.column(name) for name in batch.schema.names if name != "label"]
    bounds = [view.offsets.to_numpy() for view in views]
    return Block(
        tuple(view.values.to_numpy() for view in views),
        tuple(np.diff(offsets).astype(np.int64) for offsets in bounds),
        batch.column("label").to_numpy(),
    )


def _column(view: int) -> str:
    return "tokens" if view == 1 else f"tokens_{view}"
