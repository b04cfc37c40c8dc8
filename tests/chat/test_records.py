from edgechat.chat.records import ChatSettings, apply_preset
from edgechat.settings import Preset, SamplingDefaults

WARM = ChatSettings(think=True, sampling=SamplingDefaults(temperature=0.9, top_k=5))


def test_what_a_preset_leaves_open_stays():
    assert apply_preset(Preset(), "Be brief.", WARM) == ("Be brief.", WARM)
    cool = Preset(sampling=SamplingDefaults(temperature=0.0))
    assert apply_preset(cool, None, WARM) == (
        None,
        ChatSettings(think=True, sampling=SamplingDefaults(temperature=0.0, top_k=5)),
    )


def test_what_it_says_holds():
    preset = Preset(system="You write code.", think=False, sampling=SamplingDefaults(top_k=0))
    assert apply_preset(preset, "Be brief.", WARM) == (
        "You write code.",
        ChatSettings(think=False, sampling=SamplingDefaults(temperature=0.9, top_k=0)),
    )
