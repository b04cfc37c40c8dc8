import pytest

from edgechat.base import paths
from edgechat.models.catalogue import read_catalogue
from edgechat.models.quality import QualityClass, kl_divergence, quality_class, worth_offering
from edgechat.models.shipped import shipped_header, shipped_quants

ENTRIES = {entry.name: entry for entry in read_catalogue(paths.shipped("models.toml"))}


def header(name):
    entry = ENTRIES[name]
    found = shipped_header(entry, shipped_quants(entry)[0])
    assert found is not None
    return found


def test_figures_carry_their_source():
    figure = kl_divergence("q4_k_m")
    assert figure is not None
    assert figure.value == 0.028152
    assert figure.source == (
        "llama.cpp tools/perplexity/README.md (Llama-3-8B, wikitext-2, importance matrix)"
    )
    plain = kl_divergence("Q8_0")
    assert plain is not None
    assert "importance" not in plain.source
    assert kl_divergence("Q9_Z") is None
    native = kl_divergence("MXFP4")
    assert native is not None
    assert native.value == 0
    assert "released" in native.source


@pytest.mark.parametrize(
    ("quants", "expected"),
    [
        ("F32 BF16 F16 fp16 Q8_0 MXFP4", "reference"),
        ("Q6_K", "near-lossless"),
        ("Q5_K_M Q5_K_S Q5_0", "high"),
        ("Q4_K_M q4_k_s IQ4_XS IQ4_NL", "good"),
        ("Q3_K_L Q3_K_M Q4_0", "reduced"),
        ("Q3_K_S Q2_K IQ2_XXS", "poor"),
    ],
)
def test_classes(quants, expected):
    for quant in quants.split():
        found = quality_class(quant)
        assert found is not None
        assert found.label == expected


def test_every_quant_of_the_catalogue_has_a_class():
    assert QualityClass.REFERENCE > QualityClass.POOR
    for entry in ENTRIES.values():
        assert all(quality_class(quant) for quant in entry.quants), entry.name
    assert sum(len(entry.quants) for entry in ENTRIES.values()) > 100


def test_what_is_worth_offering():
    small, middle, large = header("gemma-3-1b"), header("llama-3.1-8b"), header("llama-3.3-70b")
    assert worth_offering(small, "Q4_K_M")
    assert not worth_offering(small, "Q4_K_S")
    assert not worth_offering(small, "Q4_0")
    assert worth_offering(middle, "Q3_K_M")
    assert not worth_offering(middle, "Q3_K_S")
    assert worth_offering(large, "Q2_K")
    assert worth_offering(header("gpt-oss-20b"), "MXFP4")
    assert worth_offering(small, "UD-Q2_K_XL")


def test_small_models_are_recommended_only_in_what_is_worth_offering():
    recommended = [entry for entry in ENTRIES.values() if entry.quant is not None]
    assert len(recommended) > 30
    for entry in recommended:
        assert worth_offering(header(entry.name), entry.quant), entry.name
