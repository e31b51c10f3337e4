"""The operations that a graph of ours may contain, by what TensorFlow calls them.

One table for everything in a step: the model, its loss, what runs for each example alone,
metrics, schedules, constraints, regularizers, the inner optimizer; and for `map` and
`parse`, which make the examples. It says of an operation

* what it does beside computing its outputs from its inputs and attributes. A *pure* one
  does nothing else: it reads and writes no file, variable, table or iterator, calls no
  code of Python or of a user, and talks to no other device. That TensorFlow calls an
  operation stateless says less: `PyFuncStateless` and `ReadFile` are stateless;
* whether it is *total*: it ends, and raises for no value. Shapes and types decide about
  the program before any record is seen; values of a record must not. Where some inputs of
  a total operation must not hold data, positions must be within bounds, or a divisor of
  integers must not be data, the entry says so;
* whether the shape of its result depends on values.

How an operation carries the axis of the examples is the third column, in
`tf_bandmf.keras.clipping.independence`: functions on abstract values, for operations of
this table alone.

This is a list of what is allowed. An operation that is not in it is refused wherever it
stands. Each was looked at when it was listed; TensorFlow 2.21 has 1910 operations.
"""

from __future__ import annotations

import dataclasses
import enum
import re


class Effect(enum.Enum):
    """What an operation does beside computing its outputs."""

    NONE = "none"
    READS = "reads a variable or a table that nothing in a step changes"
    DRAWS = "draws from a generator of TensorFlow"
    ADVANCES = "assigns a variable: allowed for counters of generators"
    WRITES = "writes a variable: allowed in the update of the weights"
    UPDATES = "locks variables or adds up over replicas: likewise"
    PRINTS = "prints: allowed to the terminal"


@dataclasses.dataclass(frozen=True)
class Operation:
    """What is known about an operation.

    Attributes:
      effect: beside its outputs.
      total: whether it ends and raises for no value of an input that is not named here.
      stops: inputs whose values can stop it, negative ones from the end.
      positions: inputs whose values must be within the bounds of another one.
      divisor: input that must not be 0 (of powers: not negative) if it is an integer.
      varies: whether the shape of its result depends on values.
    """

    effect: Effect = Effect.NONE
    total: bool = True
    stops: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    divisor: int | None = None
    varies: bool = False


# NAME: or, after a colon, inputs whose values can stop it; after @, positions; after %,
# the divisor of integers.
_TOTAL = """
    Empty:0
    Abs Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue
    AdjustSaturation All:1 Angle Any:1 ApproxTopK ApproximateEqual ArgMax:1 ArgMin:1
    AsString Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D AvgPool3DGrad:0
    AvgPoolGrad:0 BatchFFT BatchFFT2D BatchFFT3D BatchIFFT BatchIFFT2D BatchIFFT3D
    BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixBandPart:1,2 BatchMatrixDiag
    BatchMatrixDiagPart BatchMatrixSetDiag BatchToSpaceND:1,2 BesselI0 BesselI0e
    BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
    BesselY0 BesselY1 BiasAdd BiasAddGrad BiasAddV1 Bitcast BitwiseAnd BitwiseOr
    BitwiseXor BroadcastArgs:0,1 BroadcastGradientArgs:0,1 BroadcastTo:1 Bucketize
    Cast Ceil ClipByValue Complex ComplexAbs ConcatOffset:0,1,2 ConcatV2:-1 Conj
    ConjugateTranspose:1 Const Conv Conv2D Conv2DBackpropFilter:1
    Conv2DBackpropInput:0 Conv3D Conv3DBackpropFilterV2:1 Conv3DBackpropInputV2:0 Cos
    Cosh Cross Cumprod:1 Cumsum:1 CumulativeLogsumexp:1 Dawsn DepthToSpace
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter:1
    DepthwiseConv2dNativeBackpropInput:0 Diag DiagPart Digamma Dilation2D
    Dilation2DBackpropFilter Dilation2DBackpropInput Div%1 DivNoNan Einsum Elu EluGrad
    EmptyTensorList:0,1 EncodeBase64 EnsureShape Equal Erf Erfc Erfinv EuclideanNorm:1
    Exp ExpandDims:1 Expint Expm1 ExtractImagePatches ExtractVolumePatches FFT FFT2D
    FFT3D FFTND:1,2 Fill:0 Fingerprint Floor FloorDiv%1 FloorMod%1 FresnelCos
    FresnelSin FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2
    FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 Gather@1 GatherNd@1
    GatherV2@1:2 Greater GreaterEqual HSVToRGB IFFT IFFT2D IFFT3D IFFTND:1,2 IRFFT2D:1
    IRFFT3D:1 IRFFT:1 IRFFTND:1,2 Identity IdentityN Igamma IgammaGradA Igammac Imag
    ImageProjectiveTransformV2:2 ImageProjectiveTransformV3:2 InTopK InTopKV2:2 Inv
    InvGrad Invert InvertPermutation:0 IsFinite IsInf IsNan L2Loss LRN LRNGrad
    LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace:2 Log Log1p
    LogSoftmax LogicalAnd LogicalNot LogicalOr LowerBound MatMul MatrixBandPart:1,2
    MatrixDiag MatrixDiagPart MatrixDiagPartV2:1 MatrixDiagPartV3:1 MatrixDiagV2:1,2,3
    MatrixDiagV3:1,2,3 MatrixSetDiag MatrixSetDiagV2:2 MatrixSetDiagV3:2 Max:1 MaxPool
    MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad
    MaxPoolGradGradV2:3,4 MaxPoolGradV2:3,4 MaxPoolV2:1,2 Maximum Mean:1 Min:1 Minimum
    MirrorPad:1 MirrorPadGrad:1 Mod%1 Mul MulNoNan Ndtri Neg NextAfter NoOp NotEqual
    NthElement:1 OneHot:1 OnesLike Pack Pad:1 PadV2:1 Placeholder
    PlaceholderWithDefault Polygamma:1 PopulationCount Pow%1 PreventGradient Prod:1 Qr
    RFFT2D:1 RFFT3D:1 RFFT:1 RFFTND:1,2 RGBToHSV Range:0,1,2 Rank Real RealDiv
    Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reshape:1 ResizeArea:1
    ResizeBicubic:1 ResizeBicubicGrad ResizeBilinear:1 ResizeBilinearGrad
    ResizeNearestNeighbor:1 ResizeNearestNeighborGrad:1 Reverse:1 ReverseSequence:1
    ReverseV2:1 RightShift Rint Roll:1,2 Round Rsqrt RsqrtGrad ScaleAndTranslate:1,2,3
    ScatterNd@0:2 Select SelectV2 Selu SeluGrad Shape ShapeN Sigmoid SigmoidGrad Sign
    Sin Sinh Size Slice:1,2 Snapshot Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SpaceToBatchND:1,2 SpaceToDepth
    SparseSoftmaxCrossEntropyWithLogits@1 Spence Split:0 SplitV:1,2 Sqrt SqrtGrad
    Square SquaredDifference Squeeze StaticRegexFullMatch StaticRegexReplace
    StopGradient StridedSlice:1,2,3 StridedSliceGrad:0,1,2,3 StringJoin StringLength
    StringLower StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringUpper Sub Sum:1 Tan Tanh TanhGrad
    TensorListElementShape TensorListFromTensor:1 TensorListGetItem:1,2
    TensorListLength TensorListPopBack:1 TensorListPushBack TensorListReserve:0,1
    TensorListResize:1 TensorListSetItem:1 TensorListStack:1 TensorScatterAdd@1
    TensorScatterMax@1 TensorScatterMin@1 TensorScatterSub@1 TensorScatterUpdate@1
    Tile:1 TopK TopKV2:1 Transpose:1 TruncateDiv%1 TruncateMod%1 Unpack
    UnsortedSegmentMax@1:2 UnsortedSegmentMin@1:2 UnsortedSegmentProd@1:2
    UnsortedSegmentSum@1:2 UpperBound Xdivy Xlog1py Xlogy
    XlaOptimizationBarrier ZerosLike Zeta:1
"""
_SEEDED = """
    StatelessMultinomial:1 StatelessRandomGetAlg StatelessRandomGetKeyCounter
    StatelessRandomGetKeyCounterAlg StatelessRandomNormal:0
    StatelessRandomNormalV2:0,3 StatelessRandomUniform:0
    StatelessRandomUniformFullInt:0 StatelessRandomUniformFullIntV2:0,3
    StatelessRandomUniformInt:0,2,3 StatelessRandomUniformIntV2:0,3,4,5
    StatelessRandomUniformV2:0,3 StatelessShuffle:3 StatelessTruncatedNormal:0
    StatelessTruncatedNormalV2:0,3
"""
_VARYING = """
    ListDiff StringSplitV2 Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Where
"""
# Pure, but some value of some input makes them raise or go on for ever, or none has been
# excluded: they may not be given data.
_PARTIAL = """
    CheckNumerics CheckNumericsV2
    AudioSpectrogram BandedTriangularSolve BatchCholesky BatchCholeskyGrad
    BatchMatrixDeterminant BatchMatrixInverse BatchMatrixSolve BatchMatrixSolveLs
    BatchMatrixTriangularSolve BatchNormWithGlobalNormalization
    BatchNormWithGlobalNormalizationGrad BatchSelfAdjointEig BatchSelfAdjointEigV2
    BatchSvd BatchToSpace Betainc Bincount BlockLSTM BlockLSTMGrad BlockLSTMGradV2
    BlockLSTMV2 CSRSparseMatrixComponents CSRSparseMatrixToDense
    CSRSparseMatrixToSparseTensor CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss
    CTCLossV2 Cholesky CholeskyGrad CombinedNonMaxSuppression
    CompositeTensorVariantFromComponents CompositeTensorVariantToComponents
    ComputeAccidentalHits Concat Conv2DBackpropFilterV2 Conv2DBackpropInputV2
    Conv3DBackpropFilter Conv3DBackpropInput CropAndResize CropAndResizeGradBoxes
    CropAndResizeGradImage DataFormatDimMap DataFormatVecPermute DecodeAndCropJpeg
    DecodeBase64 DecodeBmp DecodeCSV DecodeCompressed DecodeGif DecodeImage DecodeJpeg
    DecodePaddedRaw DecodePng DecodeRaw DecodeWav DecodeWebP DenseBincount
    DenseCountSparseOutput DenseToCSRSparseMatrix DenseToDenseSetOperation
    DenseToSparseSetOperation Dequantize DeserializeManySparse DeserializeSparse
    DrawBoundingBoxes DrawBoundingBoxesV2 DynamicPartition DynamicStitch EditDistance
    Eig EmptyTensorMap EncodeJpeg EncodeJpegVariableQuality EncodePng ExtractGlimpse
    ExtractGlimpseV2 ExtractJpegShape FakeParam FakeQuantWithMinMaxArgs
    FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
    FakeQuantWithMinMaxVarsPerChannelGradient For FractionalAvgPool
    FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad FusedPadConv2D
    FusedResizeAndPadConv2D GRUBlockCell GRUBlockCellGrad GenerateBoundingBoxProposals
    HistogramFixedWidth IsotonicRegression
    KthOrderStatistic LSTMBlockCell LSTMBlockCellGrad LogMatrixDeterminant Lu
    MakeUnique MapDefun MatrixDeterminant MatrixExponential MatrixInverse
    MatrixLogarithm MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve
    MaxPoolGradGradWithArgmax MaxPoolGradWithArgmax MaxPoolWithArgmax Mfcc
    NearestNeighbors NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3
    NonMaxSuppressionV4 NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps
    OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone ParallelConcat
    ParallelDynamicStitch ParseExample ParseExampleV2 ParseSequenceExample
    ParseSequenceExampleV2 ParseSingleExample ParseSingleSequenceExample ParseTensor
    QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3
    QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad QuantizeV2 RaggedBincount
    RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows RaggedFillEmptyRowsGrad
    RaggedGather RaggedRange RaggedTensorFromVariant RaggedTensorToSparse
    RaggedTensorToTensor RaggedTensorToVariant RaggedTensorToVariantGradient
    RandomGammaGrad ReduceJoin RegexFullMatch RegexReplace ScaleAndTranslateGrad
    ScatterNdNonAliasingAdd SegmentMax SegmentMaxV2 SegmentMean SegmentMin
    SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 SelfAdjointEig
    SelfAdjointEigV2 SerializeManySparse SerializeSparse SerializeTensor SetSize
    SobolSample SpaceToBatch SparseAdd SparseAddGrad SparseBincount SparseConcat
    SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2
    SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows
    SparseFillEmptyRowsGrad SparseMatMul SparseMatrixAdd SparseMatrixMatMul
    SparseMatrixMul SparseMatrixNNZ SparseMatrixOrderingAMD SparseMatrixSoftmax
    SparseMatrixSoftmaxGrad SparseMatrixSparseCholesky SparseMatrixSparseMatMul
    SparseMatrixTranspose SparseMatrixZeros SparseReduceMax SparseReduceMaxSparse
    SparseReduceSum SparseReduceSumSparse SparseReorder SparseReshape
    SparseSegmentMean SparseSegmentMeanGrad SparseSegmentMeanGradV2
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad
    SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum
    SparseSegmentSumGrad SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments
    SparseSlice SparseSliceGrad SparseSoftmax SparseSparseMaximum SparseSparseMinimum
    SparseSplit SparseTensorDenseAdd SparseTensorDenseMatMul
    SparseTensorToCSRSparseMatrix SparseToDense SparseToSparseSetOperation
    StatelessParameterizedTruncatedNormal StatelessRandomBinomial
    StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomPoisson
    StatelessSampleDistortedBoundingBox StochasticCastToInt StringFormat StringNGrams
    StringSplit StringToNumber Substr Svd TensorListConcat TensorListConcatLists
    TensorListConcatV2 TensorListGather TensorListPushBackBatch TensorListScatter
    TensorListScatterIntoExistingList TensorListScatterV2 TensorListSplit
    TensorMapErase TensorMapHasKey TensorMapInsert TensorMapLookup TensorMapSize
    TensorMapStackKeys TensorStridedSliceUpdate TileGrad ToBool TopKUnique
    TopKWithUnique TridiagonalMatMul TridiagonalSolve UnicodeDecode
    UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode UnravelIndex
    UnsortedSegmentJoin XlaBroadcastHelper XlaConv XlaConvV2 XlaDot XlaDotV2
    XlaDynamicSlice XlaDynamicUpdateSlice XlaEinsum XlaGather XlaKeyValueSort
    XlaPad XlaReduce XlaReducePrecision XlaReduceWindow
    XlaRemoveDynamicDimensionSize XlaRngBitGenerator XlaScatter XlaSelectAndScatter
    XlaSelfAdjointEig XlaSetBound XlaSetDynamicDimensionSize XlaSort XlaSvd
    XlaVariadicReduce XlaVariadicReduceV2 XlaVariadicSort
"""
# Operations of tensorflow-text, by which KerasHub makes tokens.
_TEXT = """
    CaseFoldUTF8 FastWordpieceTokenizeWithOffsets NormalizeUTF8 RegexSplitWithOffsets
    SentencepieceOp SentencepieceTokenizeOp SentencepieceTokenizeWithOffsetsOp
    TFText>RoundRobinTrim
    UnicodeScriptTokenizeWithOffsets WhitespaceTokenizeWithOffsets
    WhitespaceTokenizeWithOffsetsV2 WordpieceTokenizeWithOffsets
"""
# Functions, branches and loops: their bodies are walked. A loop that depends on data needs
# a bound. Cases beyond the last branch take the last one.
CALLS = frozenset(
    "PartitionedCall StatefulPartitionedCall If StatelessIf Case StatelessCase While "
    "StatelessWhile".split()
)
LOOPS = frozenset({"While", "StatelessWhile"})
BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_READS = """
    AnonymousHashTable:0 Assert:0 HashTableV2 LookupTableFindV2 LookupTableSizeV2
    ReadVariableOp ResourceGather@1 ResourceGatherNd@1 VarHandleOp VarIsInitializedOp
    VariableShape _Arg Arg _Retval
"""
# Random numbers that are repeated by no seed.
_DRAWS = """
    Multinomial:1 ParameterizedTruncatedNormal:0,1,2,3,4 RandomGamma:0,1 RandomGammaGrad
    RandomPoissonV2:0,1 RandomShuffle RandomStandardNormal:0 RandomUniform:0
    RandomUniformInt:0,1,2 StatefulStandardNormalV2:2 StatefulTruncatedNormal:2
    StatefulUniform:2 StatefulUniformFullInt:2 StatefulUniformInt:2,3,4 TruncatedNormal:0
"""
_ADVANCES = (
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp RngReadAndSkip RngSkip"
)
_WRITES = re.compile(r"Assign|Resource(Scatter|Apply|SparseApply|StridedSliceAssign)")
_UPDATES = re.compile(
    r"Mutex(V2|Lock)$|ConsumeMutexLock$|DestroyResourceOp$|DisableCopyOnRead$|"
    r"Collective(Reduce|Gather)|CollectiveInitializeCommunicator|Nccl(AllReduce|Reduce)$"
)
_ENTRY = re.compile(r"([\w>]+)(?:@(\d+))?(?:%(\d+))?(?::([-\d,]+))?$")
# Where `PrintV2` may write to: what is in a file could be read again.
TERMINAL = frozenset({"stdout", "stderr", "log(info)", "log(warning)", "log(error)"})


def _entries(
    text: str, effect: Effect, *, total: bool = True, varies: bool = False
) -> dict[str, Operation]:
    found = {}
    for word in text.split():
        match = _ENTRY.match(word)
        assert match is not None, word
        name, position, divisor, stops = match.groups()
        found[name] = Operation(
            effect,
            total,
            tuple(int(index) for index in (stops or "").split(",") if index),
            (int(position),) if position else (),
            int(divisor) if divisor else None,
            varies,
        )
    return found


OPERATIONS: dict[str, Operation] = {
    **_entries(_TOTAL, Effect.NONE),
    **_entries(_SEEDED, Effect.NONE),
    **_entries(_VARYING, Effect.NONE, varies=True),
    **_entries(_PARTIAL, Effect.NONE, total=False),
    **_entries(_TEXT, Effect.READS, total=False),
    **_entries(" ".join(CALLS), Effect.NONE),
    **_entries(_READS, Effect.READS),
    **_entries(_DRAWS, Effect.DRAWS),
    **_entries(_ADVANCES, Effect.ADVANCES),
    "PrintV2": Operation(Effect.PRINTS),
}


def operation(name: str) -> Operation | None:
    """What is known about an operation by its type; None if it is not allowed."""
    found = OPERATIONS.get(name)
    if found is not None:
        return found
    if _WRITES.match(name):
        return Operation(Effect.WRITES, total=False)
    if _UPDATES.match(name):
        return Operation(Effect.UPDATES, total=False)
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
