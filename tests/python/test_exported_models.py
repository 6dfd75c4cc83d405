"""Compares architectures that are exported from PyTorch with PyTorch: all by the TorchScript exporter, a few by the slower torch.export."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import exported_models  # noqa: E402

ARCHITECTURES = exported_models.architectures()
CASES = [pytest.param(name, "torchscript", id=f"{name}, torchscript") for name in ARCHITECTURES]
CASES += [pytest.param(name, "dynamo", id=f"{name}, dynamo") for name in ("U-Net", "Detector", "Attention")]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_architecture_gives_what_pytorch_gives(name, exporter):
    if exporter == "dynamo":
        pytest.importorskip("onnxscript")
    assert exported_models.difference(ARCHITECTURES[name], exporter) <= exported_models.TOLERANCE
