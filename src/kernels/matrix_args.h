#pragma once

// Plain arguments of the matrix kernels. Included by files with instruction-set flags: no functions here, no includes
// that bring any.

#include <cstddef>
#include <cstdint>

namespace imago::kernels {

/// Columns that share one scale of an int8 activation; panels are cut into blocks of this width.
inline constexpr std::size_t kBlockColumns = 32;

/// Tokens of a batch lie this many columns further apart than they are long: with rows of 4096 bytes all of them would
/// compete for the same sets of the first-level cache.
inline constexpr std::size_t kTokenGap = 64;

/// MatrixFunctions::alike of products that compute every token by itself.
inline constexpr std::size_t kAnyBatch = ~std::size_t{0};

/// Batches of at least this many tokens are multiplied by tiles where a kernel can.
inline constexpr std::size_t kTileBatch = 16;

/// A product that gives few tokens what they would get among many is one of at least so many.
inline constexpr std::size_t kManyTokens = kTileBatch;

/// A tile of activations: 16 tokens by 32 columns in bfloat16, row by row, or several whose sums they are. Those of 16
/// tokens follow each other, so that a product reads memory from front to back; the last of a batch may lack tokens,
/// and holds anything in their place.
inline constexpr std::size_t kTileTokens = 16;
inline constexpr std::size_t kTileColumns = 32;

/// Panels that share each pass over tiled tokens: those come from far away, and fewer panels would wait for them.
inline constexpr std::size_t kTilePanels = 16;

/// A weight matrix as files have it: canonical layout, row by row. Weight (row, column) is number
/// i = first + row · cols + column of the packed array.
struct MatrixSource {
  const std::byte* packed;
  std::size_t first;
  const float* scales;  // dtypes: weight i has scales[i / scale_group]; null: 1
  std::size_t scale_group;
  std::size_t rows, cols;
  const float* zero_points = nullptr;  // unsigned dtypes: beside the scales; null: all 0
};

/// Lays out the panels [first, last).
struct PackArgs {
  MatrixSource source;
  std::size_t scale_group;  // columns per scale in the panels of a dtype; 0: one per row
  std::byte* run;           // all panels
  std::size_t first_panel, last_panel;
};

/// Activations of `batch` tokens. Rows are padded with zeros to a multiple of 32 columns.
struct Activations {
  const float* x;                 // exact form: token t at x + t · stride
  const std::int8_t* q;           // fast form: int8 values, token t at q + t · stride
  const float* scales;            // fast form: one per 32 columns, token t at scales + t · stride / 32
  const std::int32_t* code_sums;  // fast form: the sum of q per 16 columns, token t at code_sums + t · stride / 16
  const std::int32_t* block_code_sums;  // likewise per 32 columns, token t at block_code_sums + t · stride / 32
  const float* sums;           // the sum of the activations (fast form: dequantized) per 16 columns, likewise; null
                               // in the exact form of formats that do not need it
  const float* block_sums;     // minus those of 32 columns, token t at block_sums + t · stride / 32; null likewise
  const std::uint16_t* tiles;  // bfloat16, see kTileTokens; null where no product takes them
  std::size_t tiles_apart;     // values from the tiles of 16 tokens to those of the next
  std::size_t skipped;         // tokens in front of the first one in its tile
  std::size_t stride;          // columns rounded up to a multiple of 32, plus kTokenGap in a batch
  std::size_t batch;
  const float* totals;       // the sum of the activations of each token; null where no product reads it
  const float* tile_totals;  // the same of the tiles, whose activations are rounded otherwise
};

/// y = W x + bias for the rows of the panels [first, last).
struct ProductArgs {
  const std::byte* run;
  std::size_t rows, cols;
  std::size_t scale_group;  // columns per scale of a dtype; 0: one per row
  std::size_t first_panel, last_panel;
  Activations in;
  float* y;  // token t, row r at y[t · y_stride + r]
  std::size_t y_stride;
  const float* bias;         // one per row, or null
  const float* row_offsets;  // one per row, times Activations::totals: see MatrixFunctions::centre; or null
  std::size_t far_ahead;     // bytes that are asked for in advance; 0: the processor sees to that by itself
  std::byte* scratch;        // scratch_bytes or tile_scratch_bytes of this thread, 64-byte aligned
  bool many;                 // a matmul that gives few tokens what they would get among many
};

/// Puts one token into its rows of tiles.
struct TileTokenArgs {
  const float* x;
  std::size_t cols;
  std::uint16_t* tiles;  // its row of the first tile; columns past the last are zeros there
};

using PackFunction = void (*)(const PackArgs&) noexcept;
using ProductFunction = void (*)(const ProductArgs&) noexcept;

/// One way to multiply with one format. The functions belong together: only they know the layout.
struct MatrixFunctions {
  /// Bytes of one panel; scale_group: columns per scale of a dtype, 0 for one per row.
  std::size_t (*panel_bytes)(std::size_t cols, std::size_t scale_group) noexcept;
  PackFunction pack;
  ProductFunction matvec;  // batch 1
  ProductFunction matmul;  // any batch
  /// Bytes of scratch that one thread needs.
  std::size_t (*scratch_bytes)(std::size_t cols, std::size_t batch) noexcept;
  bool needs_sums;  // reads Activations::sums in the exact form
  // In batches of up to so many tokens each of them gets, bit for bit, what it gets alone.
  std::size_t alike;
  // Unsigned dtypes whose products read the codes less this, half their range: sums then cancel less. Where a row has
  // one scale, they leave the rest of the zero point to ProductArgs::row_offsets. 0: they do neither.
  float centre = 0;

  /// Multiplies any number of tokens by tiles, on processors that have them; null elsewhere.
  ProductFunction tile_matmul = nullptr;
  std::size_t (*tile_scratch_bytes)(std::size_t cols, std::size_t batch) noexcept = nullptr;
  void (*tile_token)(const TileTokenArgs&) noexcept = nullptr;
  std::size_t tile_terms = 1;  // tiles that stand for the same tokens and columns: activations are their sums
};

}  // namespace imago::kernels
