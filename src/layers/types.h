#pragma once

// The rows of the table in layer_functions.cpp, each defined in the file of its type.

#include "layers/layer_functions.h"

namespace imago::layers {

extern const LayerFunctions kDense;
extern const LayerFunctions kMultiHeadAttention;
extern const LayerFunctions kSwiGlu;
extern const LayerFunctions kRmsNorm;
extern const LayerFunctions kCnn1;
extern const LayerFunctions kCnn2;
extern const LayerFunctions kCnn3;
extern const LayerFunctions kRnn;
extern const LayerFunctions kLstm;
extern const LayerFunctions kLayerNorm;
extern const LayerFunctions kConvTransposed1D;
extern const LayerFunctions kConvTransposed2D;
extern const LayerFunctions kConvTransposed3D;
extern const LayerFunctions kEmbedding;
extern const LayerFunctions kKMeans;
extern const LayerFunctions kSoftmax;
extern const LayerFunctions kParallel;
extern const LayerFunctions kSequential;
extern const LayerFunctions kResidual;
extern const LayerFunctions kMetacognition;

}  // namespace imago::layers
