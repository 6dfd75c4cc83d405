"""Writes the test cases of the installed onnx package as files: `write_onnx_cases.py FOLDER`.

Layout: KIND/NAME/model.onnx, tol.json and test_data_set_K/{input,output}_J.pb. The package makes its node cases in memory only.
"""

import json
import pathlib
import shutil
import sys
import warnings

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.backend.test.loader import load_model_tests


def to_proto(value, name, kind):
    """Returns the value as the protobuf message that ONNX's layout uses for this type of input or output."""
    if hasattr(value, "SerializeToString"):
        return value
    if kind == "sequence_type":
        return numpy_helper.from_list(value, name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, name)
    if kind == "map_type":
        return numpy_helper.from_dict(value, name)
    return numpy_helper.from_array(np.asarray(value), name)


def write_case(case, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model = case.model
    assert isinstance(model, ModelProto)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "tol.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
    for k, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{k}"
        data.mkdir(exist_ok=True)
        for prefix, values, declared in (("input", inputs, model.graph.input), ("output", outputs, model.graph.output)):
            for j, value in enumerate(values):
                info = declared[j]
                proto = to_proto(value, info.name, info.type.WhichOneof("value"))
                (data / f"{prefix}_{j}.pb").write_bytes(proto.SerializeToString())


def main(folder):
    warnings.simplefilter("ignore")
    count = 0
    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            target = folder / kind / case.name
            if case.model_dir:
                shutil.copytree(case.model_dir, target, dirs_exist_ok=True)
                (target / "tol.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
            else:
                write_case(case, target)
            count += 1
    print(f"{count} cases in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
