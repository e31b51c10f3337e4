"""The operations that a graph of ours may contain, by what TensorFlow calls them.

One table for everything in a step: the model, its loss, what runs for each example alone,
metrics, schedules, constraints, regularizers, the inner optimizer. It says of an operation

* what it does beside computing its outputs from its inputs and attributes. A *pure* one
  does nothing else: it reads and writes no file, variable, table or iterator, calls no
  code of Python or of a user, and talks to no other device. That TensorFlow calls an
  operation stateless says less: `PyFuncStateless` and `ReadFile` are stateless;
* whether the shape of its result depends on values.

This is a list of what is allowed. An operation that is not in it is refused wherever it
stands. Each was looked at when it was listed; TensorFlow 2.21 has 1910 operations.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Effect(enum.Enum):
    """What an operation does beside computing its outputs."""

    NONE = "none"
    READS = "reads a variable or a table that nothing in a step changes"
    DRAWS = "draws from a generator of TensorFlow"
    ADVANCES = "assigns a variable: allowed for counters of generators"
    WRITES = "writes a variable: allowed in the update of the weights"
    UPDATES = "locks variables or adds up over replicas: likewise"
    PRINTS = "prints: allowed to the terminal"


class Operation(NamedTuple):
    """What is known about an operation.

    Attributes:
      effect: beside its outputs.
      varies: whether the shape of its result depends on values.
    """

    effect: Effect
    varies: bool = False


_PURE = """
    Abs Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue
    AdjustSaturation All Angle Any ApproxTopK ApproximateEqual ArgMax ArgMin
    AsString Asin Asinh Atan Atan2 Atanh AudioSpectrogram AvgPool AvgPool3D
    AvgPool3DGrad AvgPoolGrad BandedTriangularSolve BatchCholesky BatchCholeskyGrad
    BatchFFT BatchFFT2D BatchFFT3D BatchIFFT BatchIFFT2D BatchIFFT3D BatchMatMul
    BatchMatMulV2 BatchMatMulV3 BatchMatrixBandPart BatchMatrixDeterminant
    BatchMatrixDiag BatchMatrixDiagPart BatchMatrixInverse BatchMatrixSetDiag
    BatchMatrixSolve BatchMatrixSolveLs BatchMatrixTriangularSolve
    BatchNormWithGlobalNormalization BatchNormWithGlobalNormalizationGrad
    BatchSelfAdjointEig BatchSelfAdjointEigV2 BatchSvd BatchToSpace BatchToSpaceND
    BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e
    BesselK1 BesselK1e BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad BiasAddV1
    Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor BlockLSTM BlockLSTMGrad
    BlockLSTMGradV2 BlockLSTMV2 BroadcastArgs BroadcastGradientArgs BroadcastTo
    Bucketize CSRSparseMatrixComponents CSRSparseMatrixToDense
    CSRSparseMatrixToSparseTensor CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss
    CTCLossV2 Cast Ceil CheckNumerics CheckNumericsV2 Cholesky CholeskyGrad
    ClipByValue CombinedNonMaxSuppression Complex ComplexAbs
    CompositeTensorVariantFromComponents CompositeTensorVariantToComponents
    ComputeAccidentalHits Concat ConcatOffset ConcatV2 Conj ConjugateTranspose Const
    Conv Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput
    Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2
    Conv3DBackpropInput Conv3DBackpropInputV2 Cos Cosh CropAndResize
    CropAndResizeGradBoxes CropAndResizeGradImage Cross Cumprod Cumsum
    CumulativeLogsumexp DataFormatDimMap DataFormatVecPermute Dawsn
    DecodeAndCropJpeg DecodeBase64 DecodeBmp DecodeCSV DecodeCompressed DecodeGif
    DecodeImage DecodeJpeg DecodePaddedRaw DecodePng DecodeRaw DecodeWav DecodeWebP
    DenseBincount DenseCountSparseOutput DenseToCSRSparseMatrix
    DenseToDenseSetOperation DenseToSparseSetOperation DepthToSpace
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Dequantize DeserializeManySparse
    DeserializeSparse Diag DiagPart Digamma Dilation2D Dilation2DBackpropFilter
    Dilation2DBackpropInput Div DivNoNan DrawBoundingBoxes DrawBoundingBoxesV2
    DynamicPartition DynamicStitch EditDistance Eig Einsum Elu EluGrad Empty
    EmptyTensorList EmptyTensorMap EncodeBase64 EncodeJpeg EncodeJpegVariableQuality
    EncodePng EnsureShape Equal Erf Erfc Erfinv EuclideanNorm Exp ExpandDims Expint
    Expm1 ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractJpegShape
    ExtractVolumePatches FFT FFT2D FFT3D FFTND FakeParam FakeQuantWithMinMaxArgs
    FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
    FakeQuantWithMinMaxVarsPerChannelGradient Fill Fingerprint Floor FloorDiv
    FloorMod For FractionalAvgPool FractionalAvgPoolGrad FractionalMaxPool
    FractionalMaxPoolGrad FresnelCos FresnelSin FusedBatchNorm FusedBatchNormGrad
    FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3
    FusedPadConv2D FusedResizeAndPadConv2D GRUBlockCell GRUBlockCellGrad Gather
    GatherNd GatherV2 GenerateBoundingBoxProposals Greater GreaterEqual HSVToRGB
    HistogramFixedWidth IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND
    Identity IdentityN Igamma IgammaGradA Igammac Imag ImageProjectiveTransformV2
    ImageProjectiveTransformV3 InTopK InTopKV2 Inv InvGrad Invert InvertPermutation
    IsFinite IsInf IsNan IsotonicRegression KthOrderStatistic L2Loss LRN LRNGrad
    LSTMBlockCell LSTMBlockCellGrad LeakyRelu LeakyReluGrad LeftShift Less LessEqual
    Lgamma LinSpace Log Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot
    LogicalOr LowerBound Lu MakeUnique MapDefun MatMul MatrixBandPart
    MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    MatrixDiagV2 MatrixDiagV3 MatrixExponential MatrixInverse MatrixLogarithm
    MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MatrixSolve MatrixSolveLs
    MatrixSquareRoot MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad
    MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2
    MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2
    MaxPoolWithArgmax Maximum Mean Mfcc Min Minimum MirrorPad MirrorPadGrad Mod Mul
    MulNoNan Ndtri NearestNeighbors Neg NextAfter NoOp NonMaxSuppression
    NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5
    NonMaxSuppressionWithOverlaps NotEqual NthElement OneHot OnesLike
    OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone Pack Pad PadV2
    ParallelConcat ParallelDynamicStitch ParseExample ParseExampleV2
    ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample
    ParseSingleSequenceExample ParseTensor Placeholder PlaceholderWithDefault
    Polygamma PopulationCount Pow PreventGradient Prod Qr QuantizeAndDequantize
    QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4
    QuantizeAndDequantizeV4Grad QuantizeV2 RFFT RFFT2D RFFT3D RFFTND RGBToHSV
    RaggedBincount RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows
    RaggedFillEmptyRowsGrad RaggedGather RaggedRange RaggedTensorFromVariant
    RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant
    RaggedTensorToVariantGradient RandomGammaGrad Range Rank Real RealDiv Reciprocal
    ReciprocalGrad ReduceJoin RegexFullMatch RegexReplace Relu Relu6 Relu6Grad
    ReluGrad Reshape ResizeArea ResizeBicubic ResizeBicubicGrad ResizeBilinear
    ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad Reverse
    ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad
    ScaleAndTranslate ScaleAndTranslateGrad ScatterNd ScatterNdNonAliasingAdd
    SegmentMax SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd
    SegmentProdV2 SegmentSum SegmentSumV2 Select SelectV2 SelfAdjointEig
    SelfAdjointEigV2 Selu SeluGrad SerializeManySparse SerializeSparse
    SerializeTensor SetSize Shape ShapeN Sigmoid SigmoidGrad Sign Sin Sinh Size
    Slice Snapshot SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SpaceToBatch SpaceToBatchND SpaceToDepth
    SparseAdd SparseAddGrad SparseBincount SparseConcat SparseCountSparseOutput
    SparseCross SparseCrossHashed SparseCrossV2 SparseDenseCwiseAdd
    SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows
    SparseFillEmptyRowsGrad SparseMatMul SparseMatrixAdd SparseMatrixMatMul
    SparseMatrixMul SparseMatrixNNZ SparseMatrixOrderingAMD SparseMatrixSoftmax
    SparseMatrixSoftmaxGrad SparseMatrixSparseCholesky SparseMatrixSparseMatMul
    SparseMatrixTranspose SparseMatrixZeros SparseReduceMax SparseReduceMaxSparse
    SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad
    SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum
    SparseSegmentSumGrad SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments
    SparseSlice SparseSliceGrad SparseSoftmax SparseSoftmaxCrossEntropyWithLogits
    SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd
    SparseTensorDenseMatMul SparseTensorToCSRSparseMatrix SparseToDense
    SparseToSparseSetOperation Spence Split SplitV Sqrt SqrtGrad Square
    SquaredDifference Squeeze StatelessMultinomial
    StatelessParameterizedTruncatedNormal StatelessRandomBinomial
    StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg
    StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
    StatelessRandomUniform StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2
    StatelessSampleDistortedBoundingBox StatelessShuffle StatelessTruncatedNormal
    StatelessTruncatedNormalV2 StaticRegexFullMatch StaticRegexReplace
    StochasticCastToInt StopGradient StridedSlice StridedSliceGrad StringFormat
    StringJoin StringLength StringLower StringNGrams StringSplit StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Sub Substr Sum Svd Tan Tanh TanhGrad TensorListConcat
    TensorListConcatLists TensorListConcatV2 TensorListElementShape
    TensorListFromTensor TensorListGather TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListReserve
    TensorListResize TensorListScatter TensorListScatterIntoExistingList
    TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
    TensorMapErase TensorMapHasKey TensorMapInsert TensorMapLookup TensorMapSize
    TensorMapStackKeys TensorScatterAdd TensorScatterMax TensorScatterMin
    TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate Tile TileGrad
    ToBool TopK TopKUnique TopKV2 TopKWithUnique Transpose TridiagonalMatMul
    TridiagonalSolve TruncateDiv TruncateMod UnicodeDecode UnicodeDecodeWithOffsets
    UnicodeEncode UnicodeScript UnicodeTranscode Unpack UnravelIndex
    UnsortedSegmentJoin UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    UnsortedSegmentSum UpperBound Xdivy XlaBroadcastHelper XlaConv XlaConvV2 XlaDot
    XlaDotV2 XlaDynamicSlice XlaDynamicUpdateSlice XlaEinsum XlaGather
    XlaKeyValueSort XlaOptimizationBarrier XlaPad XlaReduce XlaReducePrecision
    XlaReduceWindow XlaRemoveDynamicDimensionSize XlaRngBitGenerator XlaScatter
    XlaSelectAndScatter XlaSelfAdjointEig XlaSetBound XlaSetDynamicDimensionSize
    XlaSort XlaSvd XlaVariadicReduce XlaVariadicReduceV2 XlaVariadicSort Xlog1py
    Xlogy ZerosLike Zeta
"""
_VARYING = """
    ListDiff StringSplitV2 Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Where
"""
# Operations of tensorflow-text, by which KerasHub makes tokens.
_TEXT = """
    CaseFoldUTF8 FastWordpieceTokenizeWithOffsets NormalizeUTF8 RegexSplitWithOffsets
    SentencepieceOp SentencepieceTokenizeOp SentencepieceTokenizeWithOffsetsOp
    TFText>RoundRobinTrim
    UnicodeScriptTokenizeWithOffsets WhitespaceTokenizeWithOffsets
    WhitespaceTokenizeWithOffsetsV2 WordpieceTokenizeWithOffsets
"""
# Functions, branches and loops: their bodies are walked.
CALLS = frozenset(
    "PartitionedCall StatefulPartitionedCall If StatelessIf Case StatelessCase While "
    "StatelessWhile".split()
)
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_READS = """
    AnonymousHashTable Assert HashTableV2 LookupTableFindV2 LookupTableSizeV2
    ReadVariableOp ResourceGather ResourceGatherNd VarHandleOp VarIsInitializedOp
    VariableShape _Arg Arg _Retval
"""
# Random numbers that are repeated by no seed.
_DRAWS = """
    Multinomial ParameterizedTruncatedNormal RandomGamma RandomGammaGrad
    RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform
    RandomUniformInt StatefulStandardNormalV2 StatefulTruncatedNormal
    StatefulUniform StatefulUniformFullInt StatefulUniformInt TruncatedNormal
"""
_ADVANCES = (
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp RngReadAndSkip RngSkip"
)
_WRITES = re.compile(r"Assign|Resource(Scatter|Apply|SparseApply|StridedSliceAssign)")
_UPDATES = re.compile(
    r"Mutex(V2|Lock)$|ConsumeMutexLock$|DestroyResourceOp$|DisableCopyOnRead$|"
    r"Collective(Reduce|Gather)|CollectiveInitializeCommunicator|Nccl(AllReduce|Reduce)$"
)
# Where `PrintV2` may write to: what is in a file could be read again.
TERMINAL = frozenset({"stdout", "stderr", "log(info)", "log(warning)", "log(error)"})


OPERATIONS: dict[str, Operation] = {
    **dict.fromkeys(_PURE.split(), Operation(Effect.NONE)),
    **dict.fromkeys(_VARYING.split(), Operation(Effect.NONE, varies=True)),
    **dict.fromkeys(_TEXT.split(), Operation(Effect.READS)),
    **dict.fromkeys(CALLS, Operation(Effect.NONE)),
    **dict.fromkeys(_READS.split(), Operation(Effect.READS)),
    **dict.fromkeys(_DRAWS.split(), Operation(Effect.DRAWS)),
    **dict.fromkeys(_ADVANCES.split(), Operation(Effect.ADVANCES)),
    "PrintV2": Operation(Effect.PRINTS),
}


def operation(name: str) -> Operation | None:
    """What is known about an operation by its type; None if it is not allowed."""
    found = OPERATIONS.get(name)
    if found is not None:
        return found
    if _WRITES.match(name):
        return Operation(Effect.WRITES)
    if _UPDATES.match(name):
        return Operation(Effect.UPDATES)
    return None


def effect(node: object, name: str) -> Effect | None:
    """What an operation does beside computing its outputs; None if it is not allowed.

    Args:
      node: its `NodeDef`.
      name: its type.
    """
    known = operation(name)
    if known is None:
        return None
    if name == "Empty":  # else it is what memory was left with
        return known.effect if node.attr["init"].b else None  # type: ignore[attr-defined]
    if known.effect is Effect.PRINTS:
        stream = node.attr["output_stream"].s.decode()  # type: ignore[attr-defined]
        return known.effect if stream in TERMINAL else None
    return known.effect
