"""Models of one node that fails during a run because of its operands, and the errors that a session gives.

`told()` returns, by name, the exception's type and the beginning of its message; or the outputs' shapes if the run succeeds.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

CASES: dict[str, tuple] = {}


def case(name: str, op: str, feeds: list, attributes: dict | None = None, outputs: int = 1, domain: str = "", opset: int = 21) -> None:
    CASES[name] = (op, feeds, attributes or {}, outputs, domain, opset)


def i(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.int64)


def f(*extents: int) -> np.ndarray:
    return np.arange(int(np.prod(extents)), dtype=np.float32).reshape(extents)


case("gather out of range","Gather",[f(3,2),i(5)])
case("gather below","Gather",[f(3,2),i(-4)])
case("gather elements range","GatherElements",[f(3,2),i([7,0])],{"axis":0})
case("gather elements rank","GatherElements",[f(3,2),i(0)])
case("gathernd range","GatherND",[f(3,2),i([5,0])])
case("gathernd deep","GatherND",[f(3,2),i([0,0,0])])
case("gathernd batch","GatherND",[f(3,2),i([0],[0])],{"batch_dims":1})
case("scatter range","ScatterElements",[f(3,2),i([9,0]),f(1,2)])
case("scatter updates shape","ScatterElements",[f(3,2),i([1,0]),f(2,2)])
case("scatternd range","ScatterND",[f(3,2),i([9]),f(1,2)])
case("scatternd updates","ScatterND",[f(3,2),i([1]),f(1,3)])
case("tensorscatter range","TensorScatter",[f(1,4,2),f(1,3,2),i(3)],{"axis":1},opset=24)
case("reshape mismatch","Reshape",[f(3,2),i(4,2)])
case("reshape two unknown","Reshape",[f(3,2),i(-1,-1)])
case("reshape below -1","Reshape",[f(3,2),i(-2,3)])
case("reshape zero beyond","Reshape",[f(3,2),i(3,2,0)])
case("reshape indivisible","Reshape",[f(3,2),i(-1,4)])
case("reshape zero extents","Reshape",[f(0,2),i(-1,0)])
case("reshape allowzero","Reshape",[f(3,2),i(0,-1)],{"allowzero":1})
case("expand mismatch","Expand",[f(3,2),i(4,2)])
case("expand negative","Expand",[f(3,2),i(-3,2)])
case("slice starts lengths","Slice",[f(3,2),i(0,0),i(1)])
case("slice axes range","Slice",[f(3,2),i(0),i(1),i(5)])
case("slice axes twice","Slice",[f(3,2),i(0,0),i(1,1),i(0,0)])
case("slice step 0","Slice",[f(3,2),i(0),i(1),i(0),i(0)])
case("slice more than rank","Slice",[f(3,2),i(0,0,0),i(1,1,1)])
case("concat mismatch","Concat",[f(3,2),f(2,3)],{"axis":0})
case("concat rank","Concat",[f(3,2),f(2)],{"axis":0})
case("concat axis","Concat",[f(3,2),f(3,2)],{"axis":5})
case("add broadcast","Add",[f(3,2),f(4,2)])
case("where broadcast","Where",[np.array([True,False]),f(3),f(2)])
case("matmul inner","MatMul",[f(3,2),f(3,2)])
case("matmul batch","MatMul",[f(2,3,2),f(3,2,2)])
case("matmul scalar","MatMul",[f(),f(2,2)])
case("gemm inner","Gemm",[f(3,2),f(3,2)])
case("gemm bias","Gemm",[f(3,2),f(2,4),f(5)])
case("gemm rank","Gemm",[f(3,2,1),f(2,4)])
case("conv channels","Conv",[f(1,3,5,5),f(2,4,3,3)])
case("conv rank","Conv",[f(1,3,5),f(2,3,3,3)])
case("conv kernel too large","Conv",[f(1,3,2,2),f(2,3,3,3)])
case("conv bias","Conv",[f(1,3,5,5),f(2,3,3,3),f(3)])
case("convtranspose channels","ConvTranspose",[f(1,3,5,5),f(2,4,3,3)])
case("maxpool too large","MaxPool",[f(1,3,2,2)],{"kernel_shape":[3,3]})
case("maxpool rank","MaxPool",[f(1,3,5)],{"kernel_shape":[3,3]})
case("averagepool rank","AveragePool",[f(3)],{"kernel_shape":[3]})
case("squeeze not one","Squeeze",[f(3,2),i(0)])
case("squeeze axis range","Squeeze",[f(3,2),i(4)])
case("unsqueeze axis range","Unsqueeze",[f(3,2),i(7)])
case("unsqueeze twice","Unsqueeze",[f(3,2),i(0,0)])
case("transpose perm","Transpose",[f(3,2)],{"perm":[0,1,2]})
case("transpose perm twice","Transpose",[f(3,2)],{"perm":[0,0]})
case("split sum","Split",[f(5,2),i(2,2)],outputs=2)
case("split negative","Split",[f(5,2),i(-1,6)],outputs=2)
case("split count","Split",[f(5,2),i(5)],outputs=2)
case("split axis","Split",[f(5,2),i(2,3)],{"axis":4},outputs=2)
case("split indivisible","Split",[f(5,2)],outputs=2,opset=13)
case("tile length","Tile",[f(3,2),i(2)])
case("tile negative","Tile",[f(3,2),i(-1,2)])
case("pad length","Pad",[f(3,2),i(1,1)])
case("pad too negative","Pad",[f(3,2),i(-5,0,0,0)])
case("pad reflect too far","Pad",[f(3,2),i(5,0,0,0)],{"mode":"reflect"})
case("range step 0","Range",[i(0)[0],i(3)[0],i(0)[0]])
case("range vector","Range",[i(0,1),i(3)[0],i(1)[0]])
case("topk k","TopK",[f(3,2),i(5)],outputs=2)
case("topk negative","TopK",[f(3,2),i(-1)],outputs=2)
case("topk k vector","TopK",[f(3,2),i(1,1)],outputs=2)
case("topk axis","TopK",[f(3,2),i(1)],{"axis":5},outputs=2)
case("onehot depth 0","OneHot",[i(1,0),i(0),f(2)])
case("onehot depth negative","OneHot",[i(1,0),i(-2),f(2)])
case("onehot values","OneHot",[i(1,0),i(3),f(3)])
case("onehot depth vector","OneHot",[i(1,0),i(3,4),f(2)])
case("constantofshape negative","ConstantOfShape",[i(-1,2)])
case("constantofshape matrix","ConstantOfShape",[i([1,2])])
case("reduce axes range","ReduceSum",[f(3,2),i(5)])
case("reduce axes twice","ReduceSum",[f(3,2),i(0,0)])
case("reducemax empty","ReduceMax",[f(0,2),i(0)])
case("reducemean empty","ReduceMean",[f(0,2),i(0)])
case("argmax axis","ArgMax",[f(3,2)],{"axis":4})
case("argmax empty","ArgMax",[f(0,2)],{"axis":0})
case("softmax axis","Softmax",[f(3,2)],{"axis":4})
case("cumsum axis","CumSum",[f(3,2),i(5)[0]])
case("cumsum axis vector","CumSum",[f(3,2),i(0,1)])
case("flatten axis","Flatten",[f(3,2)],{"axis":4})
case("integer division","Div",[i(1),i(0)])
case("mod zero","Mod",[i(1),i(0)])
case("bitshift far","BitShift",[np.array([1],np.uint8),np.array([9],np.uint8)],{"direction":"LEFT"})
case("cast text","Cast",[np.array(["abc"],object)],{"to":1})
case("cast text int","Cast",[np.array(["abc"],object)],{"to":7})
case("resize scales","Resize",[f(1,1,3,3),None,np.array([1,1], np.float32)],{"mode":"nearest"})
case("resize sizes","Resize",[f(1,1,3,3),None,None,i(1,1)],{"mode":"nearest"})
case("resize negative","Resize",[f(1,1,3,3),None,np.array([1,1,-1,1], np.float32)],{"mode":"nearest"})
case("resize both none","Resize",[f(1,1,3,3)],{"mode":"nearest"})
case("resize sizes negative","Resize",[f(1,1,3,3),None,None,i(1,1,-2,3)],{"mode":"nearest"})
case("gridsample batch","GridSample",[f(1,1,3,3),f(2,2,2,2)])
case("gridsample last","GridSample",[f(1,1,3,3),f(1,2,2,3)])
case("nms boxes","NonMaxSuppression",[f(1,3,5),f(1,1,3)])
case("nms scores","NonMaxSuppression",[f(1,3,4),f(1,1,4)])
case("roialign rois","RoiAlign",[f(1,1,4,4),f(1,3),i(0)])
case("roialign batch index","RoiAlign",[f(1,1,4,4),f(1,4),i(5)])
case("layernorm scale","LayerNormalization",[f(3,4),f(3),f(3)])
case("batchnorm scale","BatchNormalization",[f(1,3,2),f(2),f(3),f(3),f(3)])
case("instancenorm scale","InstanceNormalization",[f(1,3,2),f(2),f(3)])
case("groupnorm groups","GroupNormalization",[f(1,3,2),f(3),f(3)],{"num_groups":2})
case("lstm W","LSTM",[f(2,1,3),f(1,8,4),f(1,8,2)],{"hidden_size":2})
case("gru lengths","GRU",[f(2,1,3),f(1,6,3),f(1,6,2),None,np.array([9],np.int32)],{"hidden_size":2})
case("gru lengths negative","GRU",[f(2,1,3),f(1,6,3),f(1,6,2),None,np.array([-1],np.int32)],{"hidden_size":2})
case("einsum extents","Einsum",[f(3,2),f(3,2)],{"equation":"ij,jk->ik"})
case("einsum rank","Einsum",[f(3),f(3,2)],{"equation":"ij,jk->ik"})
case("depthtospace","DepthToSpace",[f(1,3,2,2)],{"blocksize":2})
case("spacetodepth","SpaceToDepth",[f(1,3,3,2)],{"blocksize":2})
case("compress axis","Compress",[f(3,2),np.array([True])],{"axis":4})
case("reverse lengths","ReverseSequence",[f(3,2),i(9,1)])
case("reverse lengths shape","ReverseSequence",[f(3,2),i(1,1,1)])
case("det not square","Det",[f(3,2)])
case("trilu rank","Trilu",[f(3)])
case("eyelike rank","EyeLike",[f(3)])
case("quantize zero point","QuantizeLinear",[f(3,2),f(3),np.zeros(3,np.uint8)],{"axis":1})
case("dequantize scale","DequantizeLinear",[np.zeros((3,2),np.uint8),f(3)],{"axis":1})
case("matmulinteger","MatMulInteger",[np.zeros((3,2),np.uint8),np.zeros((3,2),np.uint8)])
case("qlinearmatmul scale","QLinearMatMul",[np.zeros((2,2),np.uint8),f(3),np.uint8(0),np.zeros((2,2),np.uint8),np.float32(1),np.uint8(0),np.float32(1),np.uint8(0)])
case("prelu slope","PRelu",[f(3,2),f(5)])
case("clip vector","Clip",[f(3,2),f(2)])
case("nll class","NegativeLogLikelihoodLoss",[f(3,2),i(9,0,1)])
case("softmaxce class","SoftmaxCrossEntropyLoss",[f(3,2),i(9,0,1)])
case("dft axis","DFT",[f(1,4,1),None,i(7)[0]],opset=20)
case("stft frame","STFT",[f(1,4,1),i(9)[0],f(3)],opset=17)
case("hann negative","HannWindow",[i(-3)[0]])
case("upsample","Upsample",[f(1,1,2,2),np.array([1,1], np.float32)],opset=9)
case("center crop","CenterCropPad",[f(3,2),i(2,2,2)])
case("col2im","Col2Im",[f(1,5,4),i(3,3),i(2,2)])
case("unique axis","Unique",[f(3,2)],{"axis":4})
case("regex","RegexFullMatch",[np.array(["a"],object)],{"pattern":"("},opset=20)
case("affinegrid size","AffineGrid",[f(1,2,3),i(1,1,2)],opset=20)
case("bitwise broadcast","BitwiseAnd",[i(1,2,3),i(1,2)])
case("msft fusedmatmul","FusedMatMul",[f(3,2),f(3,2)],domain="com.microsoft")
case("msft attention","Attention",[f(1,2,4),f(4,12),f(11)],{"num_heads":2},domain="com.microsoft")
case("msft mha","MultiHeadAttention",[f(1,2,4),f(1,2,5),f(1,2,4)],{"num_heads":2},domain="com.microsoft")
case("msft embed range","EmbedLayerNormalization",[np.array([[99]],np.int32),None,f(4,4),f(4,4),None,f(4),f(4)],domain="com.microsoft")
case("msft skipln","SkipLayerNormalization",[f(1,2,4),f(1,3,4),f(4)],domain="com.microsoft")
case("msft biasgelu","BiasGelu",[f(1,2,4),f(3)],domain="com.microsoft")
case("msft gatherblock","GatherBlockQuantized",[np.zeros((3,32),np.uint8),i(9),f(3,2)],{"block_size":16,"gather_axis":0,"quantize_axis":1,"bits":8},domain="com.microsoft")
case("msft matmulnbits","MatMulNBits",[f(1,33),np.zeros((2,1,16),np.uint8),f(2)],{"K":32,"N":2,"block_size":32,"bits":4},domain="com.microsoft")
case("ml labelencoder","LabelEncoder",[i(1)],{"keys_int64s":[1,2],"values_int64s":[1]},domain="ai.onnx.ml")
case("ml scaler","Scaler",[f(3,2)],{"scale":[1.,1,1],"offset":[0.,0,0]},domain="ai.onnx.ml")
case("ml normalizer","Normalizer",[f(3,2,1)],{},domain="ai.onnx.ml")
case("ml linear","LinearRegressor",[f(3,2)],{"coefficients":[1.,2,3],"intercepts":[0.]},domain="ai.onnx.ml")
case("ml arrayfeature","ArrayFeatureExtractor",[f(3,2),i(9)],domain="ai.onnx.ml")
case("ml imputer","Imputer",[f(3,2)],{"imputed_value_floats":[1.,2,3]},domain="ai.onnx.ml")
case("ml onehot","OneHotEncoder",[i(9)],{"cats_int64s":[1,2],"zeros":0},domain="ai.onnx.ml")


def model_of(op: str, feeds: dict, attributes: dict, outputs: int, domain: str, opset: int) -> bytes:
    """Makes a model of one node. The model declares no ranks for its inputs."""

    def dtype(value: np.ndarray) -> int:
        return 8 if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)

    names = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, list(feeds), names, name="node", domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(name, dtype(value), None) for name, value in feeds.items() if name]
    graph = helper.make_graph([node], "graph", inputs, [helper.make_value_info(name, onnx.TypeProto()) for name in names])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def told() -> dict[str, list[str]]:
    import onnxruntime

    options, said = onnxruntime.SessionOptions(), {}
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    for name, (op, given, attributes, outputs, domain, opset) in CASES.items():
        feeds = {f"x{k}" if value is not None else "": np.asarray(value) for k, value in enumerate(given)}
        try:
            session = onnxruntime.InferenceSession(model_of(op, feeds, attributes, outputs, domain, opset), options, providers=["CPUExecutionProvider"])
            said[name] = ["ok", str([value.shape for value in session.run(None, {key: value for key, value in feeds.items() if key})])]
        except Exception as error:  # noqa: BLE001
            said[name] = [type(error).__name__, str(error).partition(" Message: ")[0]]
    return said
