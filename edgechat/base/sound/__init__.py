"""Sounds as users give them: untrusted files, decoded in a process of their own, kept by their contents.

Start at decoding.py, the side that asks; the child's is `edgechat.native.multimodal.sound_child`, as libmtmd
decodes what is compressed. wav.py and compressed.py read headers and bound what they say.
"""
