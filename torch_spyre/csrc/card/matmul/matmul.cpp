// How a product is computed:
//
//   1. Rows of x are unpacked to float32, in blocks of depth (columns of x). Row lists that several
//      products or tiles use are unpacked once; those of small batches by the thread that needs
//      them.
//   2. The results are cut into tiles, which threads claim. A tile unpacks the part of y that it
//      needs, one block of depth at a time, and multiplies strips of rows with it.
//   3. A strip that is finished is stored (matmul/results.h) while it is still in the cache.
//
// With few rows there is no use in storing what is unpacked of y: it is multiplied on the fly.
#include "matmul/matmul.h"

#include <algorithm>

#include "matmul/blocking.h"
#include "matmul/inputs.h"
#include "matmul/kernels.h"
#include "matmul/results.h"
#include "matmul/winograd_pairs.h"

namespace spyre::card {

#if defined(__x86_64__) || defined(__i386__)
const MatmulKernels& matmul_kernels(Simd simd) {
  (void)convert_table(simd);  // throws when the processor does not have it
  switch (simd) {
    case Simd::AVX512:
      return simd_avx512::kMatmulKernels;
    case Simd::AVX2:
      return simd_avx2::kMatmulKernels;
    case Simd::PORTABLE:
      break;
  }
  return simd_portable::kMatmulKernels;
}
#else
const MatmulKernels& matmul_kernels(Simd simd) {
  (void)convert_table(simd);
  return simd_portable::kMatmulKernels;
}
#endif

namespace {

using RowList = MatmulStep::RowList;
using Product = MatmulStep::Product;

constexpr int64_t kDirectDepth = 128;     // blocks of depth of what is multiplied on the fly
constexpr int64_t kTileRows = 384;        // enough to pay for unpacking y
constexpr int64_t kWholeTileRows = 1536;  // where depth is one block, and sums are stored at once
constexpr int64_t kLeastTileRows = 120;
constexpr int64_t kTileColumns = 128;
constexpr int64_t kNarrowColumns = 64;  // with few rows
constexpr int64_t kFewRows = 48;
constexpr int64_t kManyRows = 384;           // for which it pays to unpack all of y at once
constexpr size_t kColumnsAtOnce = 4;         // tiles of columns
constexpr int64_t kPackedFloats = 4 << 20;   // of x, unpacked at a time
constexpr int64_t kAloneFloats = 256 << 10;  // up to which a thread unpacks x for itself
constexpr int64_t kSerialWork = 512 << 10;   // multiplications for which threads do not pay
constexpr int64_t kSerialFloats = 64 << 10;  // of x, likewise for unpacking
constexpr int64_t kLeastPairDepth = 64;

thread_local Scratch shared_rows;    // of the thread that runs a step: x for all threads
thread_local Scratch shared_panels;  // likewise of y
thread_local Scratch own_rows;       // x for this thread alone
thread_local Scratch panels;         // of y
thread_local Scratch sums;

// Some rows of a row list, unpacked together: by part, then by block of depth, then by row.
struct RowBlock {
  int list;
  int64_t first, count;
  int64_t floats;      // in all
  float* data;         // nullptr: not unpacked yet
  int64_t tile_first;  // numbers of the tiles that use it
};

struct Tile {
  const Product* product;
  int block;
  int64_t row, rows;        // in the block
  int64_t column, columns;  // whole sticks
  int64_t computed;         // of the columns; whole panels
};

class Matmul {
 public:
  Matmul(const MatmulStep& step, const StepHead& head, const RunContext& context, Simd simd)
      : step_(step),
        context_(context),
        kernels_(matmul_kernels(simd)),
        pairs_(context.pairs && has_pairs(step) ? pair_kernels(simd) : nullptr),
        room_(pairs_ != nullptr),
        lanes_(step.epilogue.lanes),
        inputs_(step, head, context, simd),
        results_(step, head, context, simd) {
    int64_t work = 0;
    for (const Product& product : step.products) {
      const RowList& list = step.row_lists[product.rows];
      // An element of y costs its unpacking, too.
      for (int64_t depth : list.depths) work += (list.count + 4) * product.columns * depth;
    }
    threads_ = work < kSerialWork ? 1 : context.pool.threads();
  }

  // Row lists in rounds whose unpacked rows fit kPackedFloats.
  void run() {
    const Product* product = step_.products.data();
    int64_t room = kPackedFloats;
    for (size_t i = 0; i < step_.row_lists.size(); ++i) {
      const RowList& list = step_.row_lists[i];
      int64_t row_floats = 0;
      for (int64_t depth : list.depths) row_floats += room_.row_end(depth);
      const int64_t most =
          std::max(kMostStripRows, kPackedFloats / std::max<int64_t>(row_floats, 1));
      const int64_t blocks = pieces_of(list.count, most);
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = list.count * b / blocks, last = list.count * (b + 1) / blocks;
        const int64_t floats = (last - first) * row_floats;
        if (floats > room) {
          run_round();
          room = kPackedFloats;
        }
        room -= floats;
        blocks_.push_back({static_cast<int>(i), first, last - first, floats, nullptr, 0});
        products_.push_back(product);
      }
      product += list.users;
    }
    run_round();
  }

 private:
  static bool has_pairs(const MatmulStep& step) {
    const auto is_short = [](const MatmulOperand& operand) {
      return bytes_per_elem(operand.format) <= 2;
    };
    return step.large && is_short(step.x) && is_short(step.y) &&
           std::all_of(step.row_lists.begin(), step.row_lists.end(), [](const RowList& list) {
             return std::all_of(list.depths.begin(), list.depths.end(), [](int64_t depth) {
               return depth >= kLeastPairDepth && depth % 2 == 0;
             });
           });
  }

  // ---- Rounds ---------------------------------------------------------------------------------

  bool is_direct(int64_t rows) const {
    return pairs_ == nullptr && inputs_.y_kernels().direct != nullptr && rows <= kDirectRows;
  }

  template <class Work>
  void share(int64_t units, Work&& work) {
    constexpr int kSlicesPerThread = 32;
    const int slices = static_cast<int>(std::min<int64_t>(units, kSlicesPerThread * threads_));
    if (threads_ == 1 || slices <= 1) {
      for (int64_t unit = 0; unit < units; ++unit) work(unit);
      return;
    }
    context_.pool.run(slices, [&](int i) {
      for (int64_t unit = units * i / slices; unit < units * (i + 1) / slices; ++unit) work(unit);
    });
  }

  void run_round() {
    if (blocks_.empty()) return;
    if (has_many_rows()) {
      run_strips(blocks_[0]);
    } else if (blocks_alone()) {
      cut_tiles(kWholeTileRows, kTileColumns);
      share(static_cast<int64_t>(blocks_.size()), [&](int64_t b) { run_block(b); });
    } else {
      cut_enough_tiles();
      unpack_blocks();
      share(static_cast<int64_t>(tiles_.size()), [&](int64_t t) {
        const Tile& tile = tiles_[t];
        run_tile(tile, blocks_[tile.block]);
      });
    }
    blocks_.clear();
    products_.clear();
    tiles_.clear();
  }

  // ---- Strips ---------------------------------------------------------------------------------
  //
  // With many rows y is unpacked once, for all threads; they claim strips of rows, which they
  // unpack for themselves.

  bool has_many_rows() const {
    const RowBlock& block = blocks_[0];
    const RowList& list = step_.row_lists[block.list];
    return blocks_.size() == 1 &&
           block.count >= std::max(kManyRows, 2 * kLeastStripRows * threads_) &&
           list.depths.size() == 1 && list.depths[0] > 0;
  }

  // Columns of a product with what is unpacked of y: [block of depth][panel][depth][16].
  struct Columns {
    Tile tile;  // of all rows
    float* panels;
  };

  void run_strips(RowBlock& block) {
    cut_tiles(block.count, kTileColumns);
    const int64_t depth = step_.row_lists[block.list].depths[0];
    std::vector<Columns> columns;
    int64_t floats = 0;
    for (const Tile& tile : tiles_) {
      if (!columns.empty() && floats + tile.computed * room_.panel_end(depth) > kPackedFloats) {
        run_strips(block, depth, columns, floats);
        columns.clear();
        floats = 0;
      }
      columns.push_back({tile, nullptr});
      floats += tile.computed * room_.panel_end(depth);
    }
    run_strips(block, depth, columns, floats);
  }

  void run_strips(const RowBlock& block, int64_t depth, std::vector<Columns>& columns,
                  int64_t floats) {
    float* data = shared_panels.get(floats);
    for (Columns& some : columns) {
      some.panels = data;
      data += some.tile.computed * room_.panel_end(depth);
    }
    const int64_t step = depth_block(depth), blocks = pieces_of(depth, step);
    share(static_cast<int64_t>(columns.size()) * blocks, [&](int64_t i) {
      const Columns& some = columns[i / blocks];
      const int64_t k = i % blocks * step;
      unpack_panels(some.tile, inputs_.y(*some.tile.product, 0), k, std::min(step, depth - k),
                    some.panels + room_.panel_at(k, step) * some.tile.computed);
    });
    // The same number for each thread, and all of about the same size.
    const int64_t strips = round_up(pieces_of(block.count, strip_rows(step)), threads_);
    const int64_t micro = room_.micro_rows(), pieces = pieces_of(block.count, micro);
    share(strips, [&](int64_t i) {
      const int64_t row = pieces * i / strips * micro;
      const int64_t end = std::min(pieces * (i + 1) / strips * micro, block.count);
      run_strip(block, depth, columns, row, end - row);
    });
  }

  void run_strip(const RowBlock& block, int64_t depth, const std::vector<Columns>& columns,
                 int64_t row, int64_t rows) const {
    const int64_t step = depth_block(depth), padded = round_up(depth, kPanel);
    float* a = own_rows.get(room_.row(step) * rows + room_.behind(step));
    const auto unpack = [&](int64_t k, int64_t width) {
      unpack_rows(step_.row_lists[block.list], 0, {block.first + row, rows, k, width}, a);
    };
    if (depth <= step) {
      unpack(0, padded);
      for (const Columns& some : columns) {
        multiply_whole(some.tile, block, row, a, room_.row(padded), some.panels, depth, rows);
      }
      return;
    }
    // As many columns at a time as have room for their sums in the cache.
    float* sum = sums.get(kColumnsAtOnce * rows * kTileColumns);
    for (size_t c = 0; c < columns.size(); c += kColumnsAtOnce) {
      const size_t end = std::min(columns.size(), c + kColumnsAtOnce);
      const auto sum_of = [&](size_t i) {
        return sum + static_cast<int64_t>(i - c) * rows * kTileColumns;
      };
      for (int64_t k = 0; k < depth; k += step) {
        const int64_t some = std::min(step, depth - k), width = std::min(step, padded - k);
        unpack(k, width);
        for (size_t i = c; i < end; ++i) {
          const Tile& tile = columns[i].tile;
          multiply_strip(tile, a, room_.row(width),
                         columns[i].panels + room_.panel_at(k, step) * tile.computed, some, rows,
                         sum_of(i), {k == 0, k + some == depth});
        }
      }
      for (size_t i = c; i < end; ++i) {
        store(columns[i].tile, block, row, rows, 0, columns[i].tile.columns, sum_of(i));
      }
    }
  }

  // ---- Tiles ----------------------------------------------------------------------------------

  // True when each thread has blocks enough to unpack and multiply them on its own.
  bool blocks_alone() const {
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    if (threads_ > 1 && blocks < 2 * threads_) return false;
    return std::all_of(blocks_.begin(), blocks_.end(),
                       [](const RowBlock& block) { return block.floats <= kAloneFloats; });
  }

  void cut_tiles(int64_t most_rows, int64_t most_columns) {
    tiles_.clear();
    for (size_t b = 0; b < blocks_.size(); ++b) {
      RowBlock& block = blocks_[b];
      block.tile_first = static_cast<int64_t>(tiles_.size());
      // With few rows most of the time goes into reading y: one column of sticks after the other.
      const bool narrow = block.count <= kFewRows;
      const int64_t row_step =
          round_up(pieces_of(block.count, pieces_of(block.count, most_rows)), room_.micro_rows());
      const int64_t column_step = narrow ? kNarrowColumns : most_columns;
      for (int64_t user = 0; user < step_.row_lists[block.list].users; ++user) {
        const Product& product = products_[b][user];
        for (int64_t row = 0; row < block.count; row += row_step) {
          const int64_t rows = std::min(row_step, block.count - row);
          for (int64_t column = 0; column < product.columns; column += column_step) {
            const int64_t columns = std::min(column_step, product.columns - column);
            tiles_.push_back({&product, static_cast<int>(b), row, rows, column,
                              round_up(columns, lanes_), round_up(columns, kPanel)});
          }
        }
      }
    }
  }

  // Tiles are as large as the caches allow, but so many that no thread has to wait long.
  void cut_enough_tiles() {
    int64_t most_rows = 0, depth = 0;
    for (const RowBlock& block : blocks_) {
      most_rows = std::max(most_rows, block.count);
      for (int64_t part : step_.row_lists[block.list].depths) depth = std::max(depth, part);
    }
    const int64_t rows = depth <= kWholeDepth ? kWholeTileRows : kTileRows;
    const int64_t pieces = pieces_of(most_rows, rows);
    const int64_t most_pieces = std::max(pieces, most_rows / kLeastTileRows);
    for (int64_t columns : {kTileColumns, kNarrowColumns}) {
      for (int64_t p = pieces; p <= most_pieces; ++p) {
        cut_tiles(pieces_of(most_rows, p), columns);
        if (is_balanced(static_cast<int64_t>(tiles_.size()))) return;
      }
    }
  }
  bool is_balanced(int64_t tiles) const {
    if (threads_ == 1) return true;
    const int64_t most = pieces_of(tiles, threads_);  // of one thread
    return tiles >= 3 * threads_ && (most * threads_ - tiles) * 16 <= tiles;
  }

  void unpack_blocks() {
    constexpr int64_t kRowsAtOnce = 48;
    struct Piece {
      int block;
      int64_t first, last;
    };
    int64_t floats = 0;
    for (const RowBlock& block : blocks_) floats += block.floats;
    float* data = shared_rows.get(floats + room_.behind(kWholeDepth));
    std::vector<Piece> pieces;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      blocks_[b].data = data;
      data += blocks_[b].floats;
      for (int64_t row = 0; row < blocks_[b].count; row += kRowsAtOnce) {
        pieces.push_back({static_cast<int>(b), row, std::min(row + kRowsAtOnce, blocks_[b].count)});
      }
    }
    const auto unpack = [&](int64_t i) {
      unpack_rows(blocks_[pieces[i].block], pieces[i].first, pieces[i].last);
    };
    if (floats < kSerialFloats) {
      for (size_t i = 0; i < pieces.size(); ++i) unpack(static_cast<int64_t>(i));
    } else {
      share(static_cast<int64_t>(pieces.size()), unpack);
    }
  }

  void run_block(int64_t b) {
    RowBlock block = blocks_[b];
    block.data = own_rows.get(block.floats + room_.behind(kWholeDepth));
    unpack_rows(block, 0, block.count);
    const size_t next = static_cast<size_t>(b) + 1;
    const int64_t end =
        next < blocks_.size() ? blocks_[next].tile_first : static_cast<int64_t>(tiles_.size());
    for (int64_t t = block.tile_first; t < end; ++t) run_tile(tiles_[t], block);
  }

  // Rows first ... last - 1 of a block.
  void unpack_rows(const RowBlock& block, int64_t first, int64_t last) const {
    const RowList& list = step_.row_lists[block.list];
    float* data = block.data;
    for (size_t part = 0; part < list.depths.size(); ++part) {
      const int64_t depth = round_up(list.depths[part], kPanel);
      const int64_t step = depth_block(list.depths[part]);
      for (int64_t k = 0; k < depth; k += step) {
        const int64_t width = std::min(step, depth - k);
        unpack_rows(list, part, {block.first + first, last - first, k, width},
                    data + room_.row_at(k, step) * block.count + first * room_.row(width));
      }
      data += room_.row_end(list.depths[part]) * block.count;
    }
  }
  // One block of depth.
  void unpack_rows(const RowList& list, size_t part, const MatmulInputs::Range& range,
                   float* to) const {
    const int64_t room = room_.row(range.columns);
    inputs_.unpack_rows(list, part, range, to, room);
    if (pairs_ != nullptr) {
      const int64_t depth = std::min(range.columns, list.depths[part] - range.column);
      pairs_->prepare_rows(to, room, range.rows, depth);
    }
  }
  // The columns of a tile, stick by stick.
  void unpack_panels(const Tile& tile, const StickRow& y, int64_t k, int64_t depth,
                     float* to) const {
    for (int64_t n = 0; n < tile.computed; n += lanes_) {
      unpack_stick(tile, y, k, depth, n, to + n * room_.panel(depth));
    }
  }
  void unpack_stick(const Tile& tile, const StickRow& y, int64_t k, int64_t depth, int64_t n,
                    float* to) const {
    const int64_t columns = std::min(lanes_, tile.computed - n);
    inputs_.unpack_panels(y, {k, depth, tile.column + n, columns}, to);
    if (pairs_ != nullptr) pairs_->prepare_panels(to, columns, depth);
  }

  // Sums are in strips of rows, and in these [sticks][rows][lanes].
  void run_tile(const Tile& tile, const RowBlock& block) const {
    const RowList& list = step_.row_lists[block.list];
    const auto finish = [&](int64_t row, int64_t rows, float* sum) {
      store(tile, block, tile.row + row, rows, 0, tile.columns, sum);
    };
    const int64_t count = tile.rows * tile.columns;
    if (list.depths.size() == 1) {
      if (is_whole(block)) return run_whole_tile(tile, block);
      multiply(tile, block, 0, block.data, sums.get(count), finish);
      return;
    }
    // The parts have blocks of their own, but strips that all of them share.
    float* total = sums.get(2 * count);
    const float* rows = block.data;
    for (size_t part = 0; part < list.depths.size(); ++part) {
      float* sum = part == 0 ? total : total + count;
      multiply(tile, block, part, rows, sum, [](int64_t, int64_t, float*) {});
      if (part > 0) kernels_.add(total, sum, count);
      rows += room_.row_end(list.depths[part]) * block.count;
    }
    for_each_strip(tile, block, [&](int64_t row, int64_t some) {
      finish(row, some, total + row * tile.columns);
    });
  }

  // Where depth is one block, sums are complete at once: those of a strip and one stick are
  // computed and stored while they are in the L1 cache.
  bool is_whole(const RowBlock& block) const {
    const int64_t depth = step_.row_lists[block.list].depths[0];
    return depth > 0 && depth <= depth_block(depth) && !is_direct(block.count);
  }
  void run_whole_tile(const Tile& tile, const RowBlock& block) const {
    const int64_t depth = step_.row_lists[block.list].depths[0];
    const int64_t width = room_.row(round_up(depth, kPanel));
    const StickRow y = inputs_.y(*tile.product, 0);
    float* unpacked = panels.get(room_.panel(depth) * kTileColumns);
    for_each_strip(tile, block, [&](int64_t row, int64_t rows) {
      const float* a = block.data + (tile.row + row) * width;
      if (row > 0) {
        multiply_whole(tile, block, tile.row + row, a, width, unpacked, depth, rows);
        return;
      }
      float* sum = sums.get(rows * lanes_);
      for (int64_t n = 0; n < tile.columns; n += lanes_) {
        multiply_fresh(tile, y, 0, depth, n, {a, width, sum, lanes_, rows, {true, true}},
                       unpacked + n * room_.panel(depth));
        store(tile, block, tile.row, rows, n, lanes_, sum);
      }
    });
  }
  void multiply_whole(const Tile& tile, const RowBlock& block, int64_t row, const float* a,
                      int64_t lda, const float* panels, int64_t depth, int64_t rows) const {
    float* sum = sums.get(rows * lanes_);
    for (int64_t n = 0; n < tile.columns; n += lanes_) {
      multiply_panels()(a, lda, panels + n * room_.panel(depth), sum, lanes_, rows,
                        std::min(lanes_, tile.computed - n), depth, {true, true});
      store(tile, block, row, rows, n, lanes_, sum);
    }
  }

  // Sums of some rows of a block, and of some columns of a tile.
  void store(const Tile& tile, const RowBlock& block, int64_t row, int64_t rows, int64_t column,
             int64_t columns, float* sum) const {
    if (column + columns > tile.computed) {  // the rest of the last stick becomes zeros
      float* stick = sum + (columns - lanes_) * rows;
      const int64_t first = tile.computed - (column + columns - lanes_);
      for (int64_t r = 0; r < rows; ++r) {
        std::fill(stick + r * lanes_ + first, stick + (r + 1) * lanes_, 0.0f);
      }
    }
    results_.store(*tile.product, step_.row_lists[block.list],
                   {block.first + row, rows, (tile.column + column) / lanes_, columns / lanes_},
                   sum);
  }

  template <class Visit>
  void for_each_strip(const Tile& tile, const RowBlock& block, Visit&& visit) const {
    const RowList& list = step_.row_lists[block.list];
    const int64_t depth = *std::max_element(list.depths.begin(), list.depths.end());
    const int64_t step = strip_rows(depth_block(depth));
    for (int64_t row = 0; row < tile.rows; row += step) {
      visit(row, std::min(step, tile.rows - row));
    }
  }

  // One part of the depth; calls finish(row, rows, sums) with each strip that is complete.
  template <class Finish>
  void multiply(const Tile& tile, const RowBlock& block, size_t part, const float* rows, float* sum,
                Finish&& finish) const {
    const int64_t depth = step_.row_lists[block.list].depths[part];
    const auto finish_strip = [&](int64_t row, int64_t some) {
      finish(row, some, sum + row * tile.columns);
    };
    const StickRow y = inputs_.y(*tile.product, part);
    if (depth == 0) {
      std::fill(sum, sum + tile.rows * tile.columns, 0.0f);
      for_each_strip(tile, block, finish_strip);
    } else if (is_direct(block.count)) {
      multiply_direct(tile, block, rows, y, depth, sum);
      finish_strip(0, tile.rows);
    } else {
      multiply_panels(tile, block, rows, y, depth, sum, finish_strip);
    }
  }

  template <class Finish>
  void multiply_panels(const Tile& tile, const RowBlock& block, const float* rows,
                       const StickRow& y, int64_t depth, float* sum, Finish&& finish) const {
    const int64_t padded = round_up(depth, kPanel), step = depth_block(depth);
    float* unpacked = panels.get(room_.panel(step) * kTileColumns);
    for (int64_t k = 0; k < depth; k += step) {
      const int64_t some = std::min(step, depth - k);
      const int64_t width = room_.row(std::min(step, padded - k));
      const float* a = rows + room_.row_at(k, step) * block.count + tile.row * width;
      const Continuation continuation{k == 0, k + some == depth};
      for_each_strip(tile, block, [&](int64_t row, int64_t count) {
        if (row == 0) {
          for (int64_t n = 0; n < tile.computed; n += lanes_) {
            multiply_fresh(tile, y, k, some, n,
                           {a, width, sum + n * count, lanes_, count, continuation},
                           unpacked + n * room_.panel(some));
          }
        } else {
          multiply_strip(tile, a + row * width, width, unpacked, some, count,
                         sum + row * tile.columns, continuation);
        }
        if (continuation.last) finish(row, count);
      });
    }
  }

  MultiplyPanels multiply_panels() const {
    return pairs_ != nullptr ? pairs_->multiply : inputs_.y_kernels().panels;
  }
  // One stick of a tile, whose panels are unpacked on the way.
  void multiply_fresh(const Tile& tile, const StickRow& y, int64_t k, int64_t depth, int64_t n,
                      const MatmulInputs::Factors& factors, float* unpacked) const {
    const int64_t columns = std::min(lanes_, tile.computed - n);
    if (pairs_ == nullptr) {
      inputs_.multiply_fresh(y, {k, depth, tile.column + n, columns}, factors, unpacked);
      return;
    }
    unpack_stick(tile, y, k, depth, n, unpacked);
    const auto& [a, lda, c, ldc, rows, continuation] = factors;
    pairs_->multiply(a, lda, unpacked, c, ldc, rows, columns, depth, continuation);
  }

  // Rows of x with all panels of a tile, in one block of depth.
  void multiply_strip(const Tile& tile, const float* a, int64_t lda, const float* panels,
                      int64_t depth, int64_t rows, float* sum, Continuation continuation) const {
    for (int64_t n = 0; n < tile.computed; n += lanes_) {
      multiply_panels()(a, lda, panels + n * room_.panel(depth), sum + n * rows, lanes_, rows,
                        std::min(lanes_, tile.computed - n), depth, continuation);
    }
  }

  // All of a single row at once; more rows in blocks of depth, so that what several passes over the
  // columns read stays in the L1 cache.
  void multiply_direct(const Tile& tile, const RowBlock& block, const float* rows,
                       const StickRow& y, int64_t depth, float* sum) const {
    const int64_t padded = round_up(depth, kPanel), step = depth_block(depth);
    const bool one = block.count == 1;
    for (int64_t k = 0; k < depth;) {
      const int64_t begin = k / step * step;  // of the block
      const int64_t width = std::min(step, padded - begin);
      const int64_t end = std::min(depth, begin + width);
      const int64_t some = one ? depth : std::min(kDirectDepth, end - k);
      for (int64_t n = 0; n < tile.computed;) {
        const int64_t stick = one ? tile.computed : lanes_ - n % lanes_;
        const int64_t columns = std::min({tile.computed - n, y.room(tile.column + n), stick});
        inputs_.y_kernels().direct(rows + begin * block.count + k - begin, width,
                                   y.at(tile.column + n) + k * step_.y.row_stride,
                                   step_.y.row_stride,
                                   sum + n / lanes_ * lanes_ * tile.rows + n % lanes_, lanes_,
                                   tile.rows, columns, some, {k == 0, k + some == depth});
        n += columns;
      }
      k += some;
    }
  }

  const MatmulStep& step_;
  const RunContext& context_;
  const MatmulKernels& kernels_;
  const PairKernels* const pairs_;  // nullptr: sums term by term
  const MatmulRoom room_;
  const int64_t lanes_;  // of a stick of out
  const MatmulInputs inputs_;
  const MatmulResults results_;
  int threads_ = 1;
  // Of the round.
  std::vector<RowBlock> blocks_;
  std::vector<const Product*> products_;  // by block, the first
  std::vector<Tile> tiles_;
};

}  // namespace

void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context,
                Simd simd) {
  if (step.choice) {
    const MatmulStep made = with_products(step, head, context);
    Matmul(made, head, context, simd).run();
  } else {
    Matmul(step, head, context, simd).run();
  }
}

void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context) {
  run_matmul(step, head, context, best_simd());
}

}  // namespace spyre::card
