"""Neuron chips and instances, as the registry has them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from capplan.laws import neuron
from capplan.registry import Datum, Refused, closest, names, one_of, open_table, read_by, read_record


@dataclass(frozen=True, kw_only=True, slots=True)
class NeuronChip:
    """One generation: its stacks of memory, its cores, and how many of them make a logical core."""

    name: str
    title: str
    core: str
    hbm_stack_bytes: Datum
    physical_cores_per_chip: Datum
    hbm_stacks_per_chip: Datum
    logical_nc_config: Datum
    compile_aliases: tuple[str, ...]
    tensor_parallel_sizes: tuple[int, ...]

    @property
    def physical_cores_per_hbm_stack(self) -> int:
        """Physical cores beside one stack."""
        return int(self.physical_cores_per_chip.value // self.hbm_stacks_per_chip.value)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Cores that may make one logical core."""
        return tuple(range(self.logical_nc_config.low, self.logical_nc_config.high + 1))

    @property
    def catalog_bytes(self) -> int:
        """All memory of the chip."""
        return int(self.hbm_stack_bytes.value * self.hbm_stacks_per_chip.value)

    def logical_cores_per_hbm_stack(self, degree: int) -> int:
        """Logical cores that share one stack at a degree."""
        cores = neuron.logical_cores_per_hbm_stack(
            physical_cores_per_hbm_stack=self.physical_cores_per_hbm_stack, logical_nc_config=degree
        )
        return int(cores)

    def logical_cores(self, degree: int, *, chips: int = 1) -> int:
        """Logical cores of some chips at a degree: as many ranks run there."""
        return int(self.physical_cores_per_chip.value // degree * chips)

    def rank_sizes(self, degree: int, *, most: int | None = None) -> tuple[int, ...]:
        """Supported tensor parallel sizes at a degree, up to so many logical cores.

        Where cores can be grouped, the list is that of grouped cores, and single cores double its end.
        """
        sizes = self.tensor_parallel_sizes
        if degree < self.degrees[-1]:
            sizes = (*sizes, sizes[-1] * (self.degrees[-1] // degree))
            while most is not None and sizes[-1] * 2 <= most:
                sizes = (*sizes, sizes[-1] * 2)
        return tuple(size for size in sizes if most is None or size <= most)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """An instance, or servers that are sold together: its chips, its host, and how sure that is."""

    name: str
    title: str
    platform: str = read_by(lambda table, key, none: table.word(key, names("neuron"), none))
    certainty: str = one_of("published", "user-reported", "inferred")
    servers: int
    chips: Datum
    host_bytes: Datum | None = None
    virtual_cpus: Datum | None = None


@lru_cache(maxsize=16)
def load_neuron_chip(name: str) -> NeuronChip:
    """A Neuron chip by its registry name.

    Raises Refused for an unknown one, with what there is; RegistryError for a bad file.
    """
    known = names("neuron")
    if name not in known:
        raise Refused(_unknown(name, known), "UNKNOWN_PLATFORM")
    table = open_table("neuron", name)
    ranks = table.table("tensor_parallel")
    ranks.stated(None)
    sizes = ranks.numbers("sizes")
    ranks.done()
    return read_record(NeuronChip, table, tensor_parallel_sizes=sizes)


def _unknown(name: str, known: tuple[str, ...]) -> str:
    target = target_aliases().get(name)
    if target is not None:
        return f"there is no Neuron chip {name!r}: that is the compiler's word for {target}; write {target}"
    return f"there is no Neuron chip {name!r} in the registry; there are {', '.join(known)}"


@lru_cache(maxsize=1)
def target_aliases() -> dict[str, str]:
    """What the compiler accepts as a target, each with the chip that it means."""
    found = {name: name for name in names("neuron")}
    for name in names("neuron"):
        for alias in load_neuron_chip(name).compile_aliases:
            found[alias] = name
    return found


@lru_cache(maxsize=64)
def load_instance(name: str) -> Instance:
    """An instance by its registry name or its title.

    Raises Refused for an unknown one, with the closest known names; RegistryError for a bad file.
    """
    known = {word.lower(): word for word in names("instances")}
    found = known.get(name.strip().lower().replace(" ", "-"))
    if found is None:
        raise Refused(
            f"there is no instance {name!r} in the registry; {closest(name, list(known))}; "
            "of any other, chip and instance_chips say all that is needed"
        )
    return read_record(Instance, open_table("instances", found))
