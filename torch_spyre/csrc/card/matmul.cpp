// How a product is computed:
//
//   1. Rows of x are unpacked to float32, in blocks of kDepthBlock columns. Row lists that several
//      products or tiles use are unpacked once; those of small batches by the thread that needs
//      them.
//   2. The results are cut into tiles, which threads claim. A tile unpacks the part of y that it
//      needs, kDepthBlock rows at a time, multiplies, and keeps its float32 sums until the end.
//   3. The sums are rounded and stored.
//
// With few rows there is no use in storing what is unpacked of y: it is multiplied on the fly.
#include "matmul.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <tuple>

#include "matmul_kernels.h"
#include "tile_operand.h"

namespace spyre::card {

#if defined(__x86_64__) || defined(__i386__)
const MatmulKernels& matmul_kernels(Simd simd) {
  (void)convert_table(simd);  // throws when the processor does not have it
  return simd == Simd::AVX2 ? simd_avx2::kMatmulKernels : simd_portable::kMatmulKernels;
}
#else
const MatmulKernels& matmul_kernels(Simd simd) {
  (void)convert_table(simd);
  return simd_portable::kMatmulKernels;
}
#endif

namespace {

using Place = MatmulStep::Place;
using Rows = MatmulStep::Rows;
using RowList = MatmulStep::RowList;
using Product = MatmulStep::Product;

constexpr int64_t kDepthBlock = 256;
constexpr int64_t kCachedRows = 96;  // rows of x that stay in the L2 cache, with one depth block
constexpr int64_t kTileRows = 768;   // enough to pay for unpacking y
constexpr int64_t kTileColumns = 128;
constexpr int64_t kNarrowColumns = 64;  // with few rows
constexpr int64_t kFewRows = 48;
constexpr int64_t kPackedFloats = 4 << 20;   // of x, unpacked at a time
constexpr int64_t kAloneFloats = 256 << 10;  // up to which a thread unpacks x for itself
constexpr int64_t kSerialWork = 512 << 10;   // multiplications for which threads do not pay
constexpr int64_t kSerialFloats = 64 << 10;  // of x, likewise for unpacking

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
int64_t pieces_of(int64_t value, int64_t piece) { return (value + piece - 1) / piece; }

// ------------------------------------------------------------------------------------- parsing

bool is_input_format(DataFormat format) {
  return format == DataFormat::SEN169_FP16 || format == DataFormat::IEEE_FP32 ||
         format == DataFormat::SEN143_FP8 || format == DataFormat::IEEE_FP16 ||
         format == DataFormat::BFLOAT16;
}

MatmulOperand parse_operand(WordReader& reader, const StepHead& head, DataFormat format,
                            int64_t batch_dims) {
  MatmulOperand operand;
  operand.format = format;
  operand.batch_strides = reader.list(batch_dims);
  operand.row_stride = reader.next();
  operand.stick_stride = reader.next();
  operand.address = parse_address(reader, head);
  return operand;
}

// Places are counted from where the operand begins on core 0, or on their core in a scratchpad:
// whatever the arguments of a launch and the loops, equal places stay equal.
Place place_on(const MatmulOperand& operand, int core, int64_t batch_offset) {
  if (operand.address.space == Space::LX) return {core, batch_offset};
  const std::vector<int64_t>& offsets = operand.address.offsets;
  return {0, offsets[core] - offsets[0] + batch_offset};
}

// Extents of one core.
struct Extents {
  std::vector<int64_t> batch;
  int64_t rows, columns, depth;
};

// Calls visit(index) for all indices below `sizes`, the last dimension fastest.
template <class Visit>
void for_each_batch(const std::vector<int64_t>& sizes, Visit&& visit) {
  std::vector<int64_t> index(sizes.size(), 0);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
  while (true) {
    visit(index);
    size_t d = sizes.size();
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

int64_t batch_offset(const MatmulOperand& operand, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * operand.batch_strides[d];
  return offset;
}

// Collects the slices of cores and batches by the y that they use.
class Collector {
 public:
  explicit Collector(MatmulStep& step) : step_(step) {}

  // `parts` are the cores that divide k.
  void add(const std::vector<int>& parts, const std::vector<Extents>& extents) {
    const Extents& first = extents[parts[0]];
    if (first.rows == 0 || first.columns == 0) return;
    std::vector<int64_t> depths;
    for (int core : parts) depths.push_back(extents[core].depth);
    for_each_batch(first.batch, [&](const std::vector<int64_t>& index) {
      Rows rows = {{}, first.rows};
      std::vector<Place> y;
      for (int core : parts) {
        rows.x.push_back(place_on(step_.x, core, batch_offset(step_.x, index)));
        y.push_back(place_on(step_.y, core, batch_offset(step_.y, index)));
      }
      const Place out = place_on(step_.out, parts[0], batch_offset(step_.out, index));
      const auto [entry, is_new] =
          by_y_.try_emplace({y, first.columns, depths}, step_.products.size());
      if (is_new) {
        step_.products.push_back({0, y, {}, first.columns});
        lists_.push_back({{}, depths});
      }
      append(step_.products[entry->second], lists_[entry->second], rows, out);
    });
  }

  // Gives the products their row lists, equal ones once, and sorts them by it.
  void finish() {
    std::map<RowList, int> numbers;
    for (size_t i = 0; i < step_.products.size(); ++i) {
      const auto [entry, is_new] =
          numbers.try_emplace(lists_[i], static_cast<int>(step_.row_lists.size()));
      if (is_new) step_.row_lists.push_back(lists_[i]);
      step_.products[i].rows = entry->second;
      ++step_.row_lists[entry->second].users;
    }
    std::stable_sort(step_.products.begin(), step_.products.end(),
                     [](const Product& a, const Product& b) { return a.rows < b.rows; });
  }

 private:
  // Below the rows that are there, as one with the last ones if they go on from them.
  void append(Product& product, RowList& list, const Rows& rows, const Place& out) {
    list.count += rows.count;
    if (!list.rows.empty() &&
        follows(out, product.out.back(), list.rows.back().count, step_.out.row_stride)) {
      Rows& last = list.rows.back();
      bool all = true;
      for (size_t part = 0; part < rows.x.size(); ++part) {
        all &= follows(rows.x[part], last.x[part], last.count, step_.x.row_stride);
      }
      if (all) {
        last.count += rows.count;
        return;
      }
    }
    list.rows.push_back(rows);
    product.out.push_back(out);
  }

  static bool follows(const Place& next, const Place& place, int64_t rows, int64_t stride) {
    return next.core == place.core && next.offset == place.offset + rows * stride;
  }

  MatmulStep& step_;
  std::vector<RowList> lists_;  // by product
  std::map<std::tuple<std::vector<Place>, int64_t, std::vector<int64_t>>, size_t> by_y_;
};

// Cores of one group in order of their numbers; groups in order of their first core.
std::vector<std::vector<int>> read_groups(WordReader& reader, const StepHead& head) {
  std::vector<std::vector<int>> groups;
  if (reader.next(0, 1, "has groups") == 0) {
    for (int core = 0; core < head.cores; ++core) groups.push_back({core});
    return groups;
  }
  std::map<int64_t, size_t> known;
  for (int core = 0; core < head.cores; ++core) {
    const auto [entry, is_new] = known.try_emplace(reader.next(), groups.size());
    if (is_new) groups.emplace_back();
    groups[entry->second].push_back(core);
  }
  return groups;
}

// ------------------------------------------------------------------------------------- formats

struct FloatOfE4m3 {
  FloatOfE4m3() {
    for (int code = 0; code < 256; ++code) {
      const std::byte byte{static_cast<uint8_t>(code)};
      values[code] =
          std::bit_cast<float>(load_element(DataFormat::SEN143_FP8, Numerics::DLFLOAT16, &byte));
    }
  }
  std::array<float, 256> values;
};

bool unpack_e4m3(std::byte* dst, int64_t dst_pitch, const std::byte* src, int64_t src_pitch,
                 int64_t rows, int64_t cols, Stores) {
  static const FloatOfE4m3 table;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = reinterpret_cast<float*>(dst + r * dst_pitch);
    const std::byte* from = src + r * src_pitch;
    for (int64_t c = 0; c < cols; ++c) to[c] = table.values[std::to_integer<uint8_t>(from[c])];
  }
  return true;
}

bool is_dlfloat16(DataFormat format, Numerics numerics) {
  return format == DataFormat::SEN169_FP16 && numerics == Numerics::DLFLOAT16;
}

ConvertRows unpacker(DataFormat format, Numerics numerics, const ConvertTable& table) {
  if (format == DataFormat::SEN143_FP8) return unpack_e4m3;
  if (format == DataFormat::BFLOAT16) return table.to_card[int(Conversion::BF16_F32)];
  if (format == DataFormat::IEEE_FP32) return table.from_card[int(Conversion::COPY_4)];
  return table.from_card[int(is_dlfloat16(format, numerics) ? Conversion::F32_DLF16
                                                            : Conversion::F32_HALF)];
}

ConvertRows packer(DataFormat format, Numerics numerics, const ConvertTable& table) {
  if (format == DataFormat::BFLOAT16) return table.from_card[int(Conversion::BF16_F32)];
  if (format == DataFormat::IEEE_FP32) return table.to_card[int(Conversion::COPY_4)];
  return table
      .to_card[int(is_dlfloat16(format, numerics) ? Conversion::F32_DLF16 : Conversion::F32_HALF)];
}

// None for formats that are rare: these are unpacked panel by panel, whatever the number of rows.
MatmulKernels::Format kernels_for(DataFormat format, Numerics numerics,
                                  const MatmulKernels& kernels) {
  if (format == DataFormat::IEEE_FP32) return kernels.single;
  if (format == DataFormat::SEN143_FP8 || format == DataFormat::BFLOAT16) return {};
  return is_dlfloat16(format, numerics) ? kernels.dlfloat16 : kernels.half;
}

// ------------------------------------------------------------------------------------- running

// Memory of a thread that is kept from one step to the next, so that its pages are touched once.
class Scratch {
 public:
  float* get(int64_t floats) {
    if (floats > size_) {
      data_.reset();  // before the next: never both
      data_.reset(static_cast<float*>(::operator new(floats * sizeof(float), kAlignment)));
      size_ = floats;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t size_ = 0;
};

thread_local Scratch shared_rows;  // of the thread that runs a step: x for all threads
thread_local Scratch own_rows;     // x for this thread alone
thread_local Scratch panels;       // of y
thread_local Scratch sums;

// Where an operand begins: by core in a scratchpad, else once.
class Bases {
 public:
  Bases(const MatmulOperand& operand, const StepHead& head, const RunContext& context) {
    const int count = operand.address.space == Space::LX ? head.cores : std::min(head.cores, 1);
    for (int core = 0; core < count; ++core) {
      bases_.push_back(resolve(operand.address, core, context));
    }
  }
  std::byte* operator[](const Place& place) const { return bases_[place.core] + place.offset; }

 private:
  std::vector<std::byte*> bases_;
};

// Elements along sticks, from an element that a pointer may name inside its stick.
class StickRow {
 public:
  StickRow(std::byte* begin, const MatmulOperand& operand)
      : elem_bytes_(bytes_per_elem(operand.format)),
        per_stick_(elems_per_stick(operand.format)),
        stick_stride_(operand.stick_stride) {
    const int64_t inside = reinterpret_cast<uintptr_t>(begin) % kStickBytes;
    begin_ = begin - inside;
    skipped_ = inside / elem_bytes_;
  }
  std::byte* at(int64_t element) const {
    element += skipped_;
    return begin_ + element / per_stick_ * stick_stride_ + element % per_stick_ * elem_bytes_;
  }
  // Elements from this one to the end of its stick.
  int64_t room(int64_t element) const { return per_stick_ - (element + skipped_) % per_stick_; }
  bool has_whole_panels() const { return skipped_ % kPanel == 0; }

 private:
  int64_t elem_bytes_, per_stick_, stick_stride_;
  std::byte* begin_;
  int64_t skipped_;  // elements of the first stick
};

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
  int64_t row, rows;  // in the block
  int64_t column, columns;
};

class Matmul {
 public:
  Matmul(const MatmulStep& step, const StepHead& head, const RunContext& context, Simd simd)
      : step_(step),
        head_(head),
        context_(context),
        kernels_(matmul_kernels(simd)),
        unpack_x_(unpacker(step.x.format, context.numerics, convert_table(simd))),
        unpack_y_(unpacker(step.y.format, context.numerics, convert_table(simd))),
        pack_out_(packer(step.out.format, context.numerics, convert_table(simd))),
        y_kernels_(kernels_for(step.y.format, context.numerics, kernels_)),
        x_(step.x, head, context),
        y_(step.y, head, context),
        out_(step.out, head, context) {
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
      const int64_t row_floats = padded_depth(list);
      const int64_t most = std::max(kCachedRows, kPackedFloats / std::max<int64_t>(row_floats, 1));
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
  static int64_t padded_depth(const RowList& list) {
    int64_t depth = 0;
    for (int64_t part : list.depths) depth += round_up(part, kPanel);
    return depth;
  }

  bool is_direct(int64_t rows) const { return y_kernels_.direct != nullptr && rows <= kDirectRows; }

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
    if (blocks_alone()) {
      cut_tiles(kTileRows, kTileColumns);
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

  // True when each thread has blocks enough to unpack and multiply them on its own.
  bool blocks_alone() const {
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    if (threads_ > 1 && blocks < 2 * threads_) return false;
    return std::all_of(blocks_.begin(), blocks_.end(), [&](const RowBlock& block) {
      return block.floats <= kAloneFloats && step_.row_lists[block.list].users == 1;
    });
  }

  void cut_tiles(int64_t most_rows, int64_t most_columns) {
    tiles_.clear();
    for (size_t b = 0; b < blocks_.size(); ++b) {
      RowBlock& block = blocks_[b];
      block.tile_first = static_cast<int64_t>(tiles_.size());
      // With few rows most of the time goes into reading y: one column of sticks after the other.
      const bool narrow = block.count <= kFewRows;
      const int64_t row_step =
          round_up(pieces_of(block.count, pieces_of(block.count, most_rows)), kMicroRows);
      const int64_t column_step = narrow ? kNarrowColumns : most_columns;
      for (int64_t user = 0; user < step_.row_lists[block.list].users; ++user) {
        const Product& product = products_[b][user];
        for (int64_t row = 0; row < block.count; row += row_step) {
          const int64_t rows = std::min(row_step, block.count - row);
          for (int64_t column = 0; column < product.columns; column += column_step) {
            const int64_t columns = std::min(column_step, product.columns - column);
            tiles_.push_back({&product, static_cast<int>(b), row, rows, column, columns});
          }
        }
      }
    }
  }

  // Smaller tiles when there are many threads and few tiles.
  void cut_enough_tiles() {
    int64_t rows = kTileRows, columns = kTileColumns;
    cut_tiles(rows, columns);
    while (threads_ > 1 && static_cast<int64_t>(tiles_.size()) < 4 * threads_ &&
           (columns > kNarrowColumns || rows > kCachedRows / 2)) {
      columns > kNarrowColumns ? columns /= 2 : rows /= 2;
      cut_tiles(rows, columns);
    }
  }

  void unpack_blocks() {
    constexpr int64_t kRowsAtOnce = 48;
    struct Piece {
      int block;
      int64_t first, last;
    };
    int64_t floats = 0;
    for (const RowBlock& block : blocks_) floats += block.floats;
    float* data = shared_rows.get(floats);
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
    block.data = own_rows.get(block.floats);
    unpack_rows(block, 0, block.count);
    const size_t next = static_cast<size_t>(b) + 1;
    const int64_t end =
        next < blocks_.size() ? blocks_[next].tile_first : static_cast<int64_t>(tiles_.size());
    for (int64_t t = block.tile_first; t < end; ++t) run_tile(tiles_[t], block);
  }

  StickRow stick_row(std::byte* begin, const MatmulOperand& operand) const {
    const StickRow row(begin, operand);
    if (!row.has_whole_panels()) {
      throw ProgramError("step '" + head_.name + "': an operand begins inside a stick, at no " +
                         "multiple of " + std::to_string(kPanel) + " elements");
    }
    return row;
  }

  // Rows first ... last - 1 of a block. What fills up the last 16 columns is never used.
  void unpack_rows(const RowBlock& block, int64_t first, int64_t last) const {
    const RowList& list = step_.row_lists[block.list];
    int64_t begin = -block.first;  // of the entry of the list, in rows of the block
    for (const Rows& rows : list.rows) {
      const int64_t from = std::max(first, begin), to = std::min(last, begin + rows.count);
      float* data = block.data;
      for (size_t part = 0; from < to && part < rows.x.size(); ++part) {
        const int64_t depth = round_up(list.depths[part], kPanel);
        std::byte* row = x_[rows.x[part]] + (from - begin) * step_.x.row_stride;
        const StickRow sticks = stick_row(row, step_.x);
        for (int64_t k = 0; k < depth; k += kDepthBlock) {
          const int64_t width = std::min(kDepthBlock, depth - k);
          unpack_columns(sticks, k, width, data + k * block.count + from * width, to - from);
        }
        data += depth * block.count;
      }
      begin += rows.count;
    }
  }

  void unpack_columns(const StickRow& sticks, int64_t k, int64_t width, float* to,
                      int64_t rows) const {
    for (int64_t done = 0; done < width;) {
      const int64_t some = std::min(sticks.room(k + done), width - done);
      unpack_x_(reinterpret_cast<std::byte*>(to + done), width * int64_t{sizeof(float)},
                sticks.at(k + done), step_.x.row_stride, rows, some, Stores::CACHED);
      done += some;
    }
  }

  void run_tile(const Tile& tile, const RowBlock& block) const {
    const RowList& list = step_.row_lists[block.list];
    const size_t parts = list.depths.size();
    const int64_t count = tile.rows * tile.columns;
    float* total = sums.get(parts > 1 ? 2 * count : count);
    const float* rows = block.data;
    for (size_t part = 0; part < parts; ++part) {
      const int64_t depth = list.depths[part];
      float* sum = part == 0 ? total : total + count;
      const StickRow y = stick_row(y_[tile.product->y[part]], step_.y);
      if (depth == 0) {
        std::fill(sum, sum + count, 0.0f);
      } else if (is_direct(block.count)) {
        multiply_direct(tile, block, rows, y, depth, sum);
      } else {
        multiply_panels(tile, block, rows, y, depth, sum);
      }
      if (part > 0) kernels_.add(total, sum, count);
      rows += round_up(depth, kPanel) * block.count;
    }
    store(tile, block, total);
  }

  void multiply_panels(const Tile& tile, const RowBlock& block, const float* rows,
                       const StickRow& y, int64_t depth, float* sum) const {
    float* unpacked = panels.get(kDepthBlock * kTileColumns);
    const int64_t padded = round_up(depth, kPanel);
    for (int64_t k = 0; k < depth; k += kDepthBlock) {
      const int64_t some = std::min(kDepthBlock, depth - k);
      const int64_t width = std::min(kDepthBlock, padded - k);
      const float* a = rows + k * block.count + tile.row * width;
      unpack_panels(y, tile.column, tile.columns, k, some, unpacked);
      for (int64_t row = 0; row < tile.rows; row += kCachedRows) {
        for (int64_t n = 0; n < tile.columns; n += kPanel) {
          kernels_.panel(a + row * width, width, unpacked + n * some, sum + row * tile.columns + n,
                         tile.columns, std::min(kCachedRows, tile.rows - row), some,
                         {k == 0, k + some == depth});
        }
      }
    }
  }

  // Rows k ... k + depth - 1 of y, columns first ... first + columns - 1.
  void unpack_panels(const StickRow& y, int64_t first, int64_t columns, int64_t k, int64_t depth,
                     float* to) const {
    for (int64_t n = 0; n < columns;) {
      const std::byte* from = y.at(first + n) + k * step_.y.row_stride;
      const int64_t some = std::min(columns - n, y.room(first + n));
      if (y_kernels_.unpack != nullptr) {
        y_kernels_.unpack(from, step_.y.row_stride, to + n * depth, some, depth);
        n += some;
      } else {
        unpack_y_(reinterpret_cast<std::byte*>(to + n * depth), kPanel * int64_t{sizeof(float)},
                  from, step_.y.row_stride, depth, kPanel, Stores::CACHED);
        n += kPanel;
      }
    }
  }

  // All of a single row at once; more rows in blocks of depth, so that what several passes over the
  // columns read stays in the L1 cache.
  void multiply_direct(const Tile& tile, const RowBlock& block, const float* rows,
                       const StickRow& y, int64_t depth, float* sum) const {
    const int64_t padded = round_up(depth, kPanel);
    const int64_t step = block.count == 1 ? depth : kDepthBlock;
    for (int64_t k = 0; k < depth; k += step) {
      const int64_t some = std::min(step, depth - k);
      const int64_t width = std::min(kDepthBlock, padded - k);
      for (int64_t n = 0; n < tile.columns;) {
        const int64_t columns = std::min(tile.columns - n, y.room(tile.column + n));
        y_kernels_.direct(rows + k * block.count, width,
                          y.at(tile.column + n) + k * step_.y.row_stride, step_.y.row_stride,
                          sum + n, tile.columns, tile.rows, columns, some,
                          {k == 0, k + some == depth});
        n += columns;
      }
    }
  }

  void store(const Tile& tile, const RowBlock& block, const float* sum) const {
    const RowList& list = step_.row_lists[block.list];
    const int64_t per_stick = elems_per_stick(step_.out.format);
    const int64_t first = block.first + tile.row, last = first + tile.rows;  // rows of the list
    int64_t begin = 0;
    for (size_t i = 0; i < list.rows.size(); begin += list.rows[i++].count) {
      const int64_t from = std::max(first, begin), to = std::min(last, begin + list.rows[i].count);
      if (from >= to) continue;
      std::byte* out = out_[tile.product->out[i]] + (from - begin) * step_.out.row_stride;
      for (int64_t n = 0; n < tile.columns; n += per_stick) {
        pack_out_(out + (tile.column + n) / per_stick * step_.out.stick_stride,
                  step_.out.row_stride,
                  reinterpret_cast<const std::byte*>(sum + (from - first) * tile.columns + n),
                  tile.columns * int64_t{sizeof(float)}, to - from, per_stick, Stores::CACHED);
      }
    }
  }

  const MatmulStep& step_;
  const StepHead& head_;
  const RunContext& context_;
  const MatmulKernels& kernels_;
  const ConvertRows unpack_x_, unpack_y_, pack_out_;
  const MatmulKernels::Format y_kernels_;
  const Bases x_, y_, out_;
  int threads_ = 1;
  // Of the round.
  std::vector<RowBlock> blocks_;
  std::vector<const Product*> products_;  // by block, the first
  std::vector<Tile> tiles_;
};

}  // namespace

MatmulStep parse_matmul(WordReader& reader, const StepHead& head) {
  constexpr int64_t kMostDims = 64;
  MatmulStep step;
  const DataFormat x = reader.format(), y = reader.format(), out = reader.format();
  for (DataFormat format : {x, y}) {
    if (!is_input_format(format)) reader.fail(std::string("it cannot multiply ") + name(format));
  }
  if (!is_input_format(out) || out == DataFormat::SEN143_FP8) {
    reader.fail(std::string("it has no results in ") + name(out));
  }
  const int64_t batch_dims = reader.next(0, kMostDims, "the number of batch dimensions");
  std::vector<Extents> extents;
  for (int core = 0; core < head.cores; ++core) {
    std::vector<int64_t> all = reader.list(batch_dims + 3);
    for (int64_t extent : all) {
      if (extent < 0) reader.fail("an extent is " + std::to_string(extent));
    }
    extents.push_back({{all.begin(), all.begin() + batch_dims},
                       all[batch_dims],
                       all[batch_dims + 1] * elems_per_stick(out),
                       all[batch_dims + 2]});
  }
  step.x = parse_operand(reader, head, x, batch_dims);
  step.y = parse_operand(reader, head, y, batch_dims);
  step.out = parse_operand(reader, head, out, batch_dims);
  Collector collector(step);
  for (const std::vector<int>& group : read_groups(reader, head)) {
    for (int core : group) {
      const Extents &is = extents[core], &first = extents[group[0]];
      if (is.batch != first.batch || is.rows != first.rows || is.columns != first.columns) {
        reader.fail("core " + std::to_string(core) + " is in the group of core " +
                    std::to_string(group[0]) + ", but has other extents");
      }
    }
    collector.add(group, extents);
  }
  collector.finish();
  return step;
}

void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context,
                Simd simd) {
  Matmul(step, head, context, simd).run();
}

void run_matmul(const MatmulStep& step, const StepHead& head, const RunContext& context) {
  run_matmul(step, head, context, best_simd());
}

}  // namespace spyre::card
