"""Whether methods hold what every attention must."""

from lrbench.claims.measured import Measured, exact
from lrbench.errors import Unsupported
from lrbench.registry import backends
from lrbench.testing import conformance


def failures(*, models: tuple[str, ...] = ("combiner",)) -> Measured:
    """K16: how many probes of the contract fail, over models, causal and not.

    A direction that a model says it does not have is no failure; the detail tells how many there were.
    """
    probes, failed, refused = 0, list[str](), list[str]()
    for model in models:
        backend = backends.get(model)
        for causal in (False, True):
            try:
                found = conformance(backend.cls, backend.options, causal)
            except Unsupported as refusal:
                refused.append(refusal.message)
                continue
            probes += len(found)
            failed += [f"{model}: {probe}" for probe in found if not probe.passed]
    told = "; ".join([f"{probes} probes of {len(models)} models, {len(refused)} directions refused", *failed])
    return exact(len(failed), told, n=probes)
