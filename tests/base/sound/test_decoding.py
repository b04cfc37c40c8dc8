"""Sounds are decoded as they were recorded; whatever a file contains, there is an answer or an error."""

import random
import stat
import struct
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgechat.base.errors import SoundError
from edgechat.base.process import file_decoder
from edgechat.base.sound import sound
from edgechat.base.sound.decoding_child import resampled
from edgechat.base.sound.sound import MAX_SECONDS, SoundDecoder, SoundFacts, SoundLibrary
from tests.kit.vision import RATE, tone, wav, wav_of

MP3 = Path(__file__).with_name("green.mp3").read_bytes()
"""Half a second of tone("green"), by LAME, at 22,050 Hz."""
FLAC = Path(__file__).with_name("magenta.flac").read_bytes()
"""A quarter of a second of tone("magenta"), by libFLAC."""
WAVE = tone("white", 0.1)
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def decoder():
    with SoundDecoder() as decoder:
        yield decoder


def samples(decoder, data, rate=RATE):
    return np.frombuffer(decoder.samples(data, rate).pcm, np.float32)


def form(kind=1, channels=1, rate=RATE, bits=16, frame=None):
    frame = channels * bits // 8 if frame is None else frame
    return struct.pack("<HHIIHH", kind, channels, rate, rate * frame % 2**32, frame, bits)


def packed(sound, bits):
    numbers = np.round(sound.astype(np.float64) * (2 ** (bits - 1) - 1)).astype(np.int64)
    if bits == 8:
        return (numbers + 128).astype(np.uint8).tobytes()
    return b"".join(int(number).to_bytes(bits // 8, "little", signed=True) for number in numbers)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_pcm(decoder, bits):
    data = wav_of((b"LIST", b"odd"), (b"fmt ", form(bits=bits)), (b"data", packed(WAVE, bits)))
    assert decoder.inspect(data) == SoundFacts("wav", pytest.approx(0.1))
    assert np.abs(samples(decoder, data) - WAVE).max() < 1.5 * 2 ** (1 - bits) + 1e-6


@pytest.mark.parametrize("kind", ["<f4", "<f8"])
def test_floats(decoder, kind):
    head = form(3, bits=8 * int(kind[2]))
    assert np.allclose(
        samples(decoder, wav_of((b"fmt ", head), (b"data", WAVE.astype(kind).tobytes()))), WAVE
    )
    loud = wav_of((b"fmt ", head), (b"data", (1e9 * WAVE).astype(kind).tobytes()))
    assert np.abs(samples(decoder, loud)).max() == 1


def test_channels_are_mixed(decoder):
    both = np.stack((tone("red", 0.1), tone("blue", 0.1)), axis=1)
    extensible = form(0xFFFE, channels=2) + struct.pack("<HHIH", 22, 16, 3, 1) + bytes(14)
    data = wav_of((b"fmt ", extensible), (b"data", packed(both.reshape(-1), 16)))
    assert np.abs(samples(decoder, data) - both.mean(axis=1)).max() < 1e-4


def test_a_file_need_not_know_how_long_it_is(decoder):
    data = bytearray(wav(WAVE))
    data[40:44] = b"\xff" * 4
    assert decoder.inspect(bytes(data)).seconds == pytest.approx(0.1)
    assert decoder.inspect(wav(WAVE)[:-1600]).seconds == pytest.approx(0.05)  # one that was cut off
    unknown = bytearray(FLAC)
    unknown[21] &= 0xF0
    unknown[22:26] = bytes(4)
    assert decoder.inspect(bytes(unknown)).seconds == pytest.approx(0.25, abs=0.1)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 44101, 48000, 96000])
@pytest.mark.parametrize("to", [16000, 24000])
def test_resampling_keeps_tones_and_drops_what_does_not_fit(rate, to):
    times, made = np.arange(rate // 2) / rate, np.arange(to // 2) / to
    sound = np.sin(2 * np.pi * 440 * times).astype(np.float32)
    found = resampled(sound, rate, to)
    assert abs(len(found) - to / 2) <= 2
    middle = slice(500, to // 2 - 500)
    assert np.abs(found[middle] - np.sin(2 * np.pi * 440 * made)[middle]).max() < 1e-3
    if rate > 2.5 * to:
        high = np.sin(2 * np.pi * (0.55 * to) * times).astype(np.float32)
        assert np.abs(resampled(high, rate, to)[middle]).max() < 0.01


@pytest.mark.parametrize(
    ("data", "kind", "seconds", "loud"),
    [(MP3, "mp3", 0.57, (1000,)), (FLAC, "flac", 0.25, (300, 4000))],
    ids=["mp3", "flac"],
)
def test_compressed_sounds(decoder, data, kind, seconds, loud):
    facts = decoder.inspect(data)
    assert (facts.format, facts.seconds) == (kind, pytest.approx(seconds, abs=0.1))
    for rate in (RATE, 24000):
        sound = samples(decoder, data, rate)
        assert len(sound) / rate == pytest.approx(facts.seconds, abs=0.001)
        spectrum = np.abs(np.fft.rfft(sound[:: rate // RATE]))
        hertz = np.fft.rfftfreq(len(sound[:: rate // RATE]), (rate // RATE) / rate)
        top = {round(hertz[at] / 100) * 100 for at in np.argsort(spectrum)[-len(loud) :]}
        assert top == set(loud)


BROKEN = [
    (b"", "is empty"),
    (b"OggS" + bytes(100), "is not an audio file"),
    (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not an audio file"),
    (wav_of((b"data", bytes(100))), "is damaged"),
    (wav_of((b"fmt ", form())), "is damaged"),
    (wav_of((b"fmt ", form()), (b"data", b"")), "is empty"),
    (wav_of((b"fmt ", form()[:8]), (b"data", bytes(100))), "is damaged"),
    (wav_of((b"fmt ", form(0x1234)), (b"data", bytes(100))), "is empty"),
    (wav_of((b"fmt ", form(channels=0)), (b"data", bytes(100))), "is damaged"),
    (wav_of((b"fmt ", form(channels=4000)), (b"data", bytes(9000))), "is damaged"),
    (wav_of((b"fmt ", form(rate=0)), (b"data", bytes(100))), "is damaged"),
    (wav_of((b"fmt ", form(rate=2**32 - 1)), (b"data", bytes(100))), "is damaged"),
    (wav_of(*[(b"LIST", b"")] * 5000), "is damaged"),
    (
        wav_of((b"fmt ", form(rate=4000, bits=8)), (b"data", bytes(4000 * MAX_SECONDS + 4000))),
        "is longer than 30 minutes",
    ),
    (wav_of((b"fmt ", form(3, bits=32)), (b"data", struct.pack("<2f", 0, np.nan))), "or not numbers"),
    (wav_of((b"fmt ", form(3, bits=64)), (b"data", struct.pack("<2d", 0, -np.inf))), "or not numbers"),
    (FLAC[:30], "is damaged"),
    (FLAC[:18] + bytes(8) + FLAC[26:], "is damaged"),
    (b"ID3\x04\0\0" + b"\x7f" * 4 + bytes(100), "is damaged"),
    (b"\xff\xfb" + bytes(100), "is damaged"),
    (MP3 * 4000, "is longer than 30 minutes"),
]


@pytest.mark.parametrize(("data", "match"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_sound_is_an_error(decoder, data, match):
    with pytest.raises(SoundError, match=match) as caught:
        decoder.inspect(data)
    assert caught.value.message.startswith("The sound ")
    assert caught.value.hint


def test_a_long_file_comes_in_parts(decoder, monkeypatch):
    monkeypatch.setattr(file_decoder, "PART", 1000)
    assert np.abs(samples(decoder, wav(WAVE)) - WAVE).max() < 1e-4


def test_files_have_names(decoder, tmp_path):
    path = tmp_path / "a.wav"
    with pytest.raises(SoundError, match=r"^a\.wav cannot be read: No such file"):
        decoder.inspect(path)
    path.write_bytes(b"x")
    with pytest.raises(SoundError, match=r"^a\.wav is not an audio file"):
        decoder.inspect(path)


@pytest.mark.slow
def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(sound, "TIME_LIMIT", 0.05)
    long = wav(np.zeros(44100 * 300, np.float32), 44100)
    with SoundDecoder() as decoder:
        begin = time.monotonic()
        with pytest.raises(SoundError, match="was still running after 0 seconds"):
            decoder.samples(long, RATE)
        assert time.monotonic() - begin < 15


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_damaged_files_neither_crash_nor_hang():
    """A child that ended is a SoundError, too, but none of these ends it."""
    rng = random.Random(1)
    whole = (wav(WAVE), wav_of((b"fmt ", form(3, bits=32)), (b"data", WAVE.tobytes())), MP3, FLAC)
    numbers = [struct.pack("<I", n) for n in (0, 1, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1)]
    with SoundDecoder() as decoder:
        decoder.inspect(MP3)
        child = decoder._child
        for _ in range(400):
            data = bytearray(rng.choice(whole))
            for _ in range(rng.choice((1, 1, 2, 5))):
                at = rng.randrange(min(len(data), 64) if rng.random() < 0.6 else len(data))
                match rng.randrange(4):
                    case 0:
                        data[at : at + 4] = rng.choice(numbers)
                    case 1:
                        data[at] ^= 1 << rng.randrange(8)
                    case 2:
                        del data[at : at + rng.randrange(1, 16)]
                    case _:
                        del data[max(at, 12) :]
            try:
                found = samples(decoder, bytes(data))
            except SoundError:
                continue
            assert len(found) <= MAX_SECONDS * RATE
            assert np.isfinite(found).all()
            assert np.abs(found).max(initial=0) < 2
        assert decoder._child is child


def test_a_sound_is_stored_once(tmp_path, monkeypatch):
    library = SoundLibrary(tmp_path / "sounds")
    with SoundDecoder() as decoder:
        sound = library.add(MP3, decoder)
        monkeypatch.setattr(decoder, "inspect", None)
        assert library.add(MP3, decoder) == sound == SoundLibrary(tmp_path / "sounds").get(sound.digest)
    assert Path(sound.path).name == f"{sound.digest}.mp3"
    assert Path(sound.path).read_bytes() == MP3
    assert stat.S_IMODE(Path(sound.path).stat().st_mode) & 0o077 == 0
    library.remove(sound.digest)
    assert library.stored() == []
