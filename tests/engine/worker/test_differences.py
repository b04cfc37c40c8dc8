"""The plan held against a load: what counts as a difference."""

from edgechat.engine.types import Difference
from edgechat.engine.worker.load_report import differences
from edgechat.native.params import Buffer

MIB = 2**20


def test_weights_in_ram_may_be_pinned_or_mapped():
    """Seen with CUDA on an H200: pinned in the dry run, mapped by the load."""
    card = Buffer("CUDA0", is_host=False, weights=5000 * MIB, cache=1024 * MIB, device="CUDA0")
    planned = (card, Buffer("CUDA_Host", is_host=True, weights=281 * MIB, compute=16 * MIB))
    real = (card, Buffer("CPU", is_host=True, weights=281 * MIB), Buffer("CUDA_Host", True, compute=16 * MIB))
    assert differences(planned, real) == ()
    more = (card, Buffer("CPU", is_host=True, weights=481 * MIB), Buffer("CUDA_Host", True, compute=16 * MIB))
    assert differences(planned, more) == (Difference("CPU", "weights", 281 * MIB, 481 * MIB),)


def test_small_differences_are_tolerated():
    def buffers(mib):
        return (Buffer("CPU", is_host=True, compute=mib * MIB),)

    assert differences(buffers(100), buffers(130)) == ()
    assert differences(buffers(100), buffers(140)) == (Difference("CPU", "compute", 100 * MIB, 140 * MIB),)
    assert differences(buffers(10_000), buffers(10_150)) == ()
