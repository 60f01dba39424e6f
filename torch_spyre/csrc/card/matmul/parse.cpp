// Reading the words of a matrix product, and collecting what its cores share.
#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "jit/specialisations.h"
#include "matmul/matmul.h"

namespace spyre::card {
namespace {

using Place = MatmulStep::Place;
using Rows = MatmulStep::Rows;
using RowList = MatmulStep::RowList;
using Product = MatmulStep::Product;

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

using Extents = MatmulStep::Extents;

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
  void add(const std::vector<int>& parts) {
    add(parts, [&](const std::vector<int64_t>& index, auto&& put) {
      put(index, 0, step_.extents[parts[0]].rows, 0);
    });
  }

  // As many pieces of rows as `pieces(index, put)` puts: put(index, first, count, offset of y).
  template <class Pieces>
  void add(const std::vector<int>& parts, Pieces&& pieces) {
    const Extents& first = step_.extents[parts[0]];
    if (first.rows == 0 || first.columns == 0) return;
    std::vector<int64_t> depths;
    for (int core : parts) depths.push_back(step_.extents[core].depth);
    const auto put = [&](const std::vector<int64_t>& index, int64_t row, int64_t count,
                         int64_t offset) {
      const auto at = [&](const MatmulOperand& operand) {
        return batch_offset(operand, index) + row * operand.row_stride;
      };
      Rows rows = {{}, count};
      std::vector<Place> y;
      for (int core : parts) {
        rows.x.push_back(place_on(step_.x, core, at(step_.x)));
        y.push_back(place_on(step_.y, core, batch_offset(step_.y, index) + offset));
      }
      std::vector<Place> results;
      for (const MatmulOperand& operand : step_.results) {
        results.push_back(place_on(operand, parts[0], at(operand)));
      }
      const auto [entry, is_new] =
          by_y_.try_emplace({y, first.columns, depths}, step_.products.size());
      if (is_new) {
        step_.products.push_back({0, y, {}, first.columns});
        lists_.push_back({{}, depths});
      }
      append(step_.products[entry->second], lists_[entry->second], rows, results);
    };
    for_each_batch(first.batch, [&](const std::vector<int64_t>& index) { pieces(index, put); });
  }

  // Gives the products their row lists, equal ones once, in the order in which they lie in memory:
  // small ones may share pages, and what a processor fetches at a time. Sorts products by them.
  void finish() {
    std::map<RowList, int> numbers;
    for (const RowList& list : lists_) numbers.try_emplace(list, 0);
    for (auto& [list, number] : numbers) {
      number = static_cast<int>(step_.row_lists.size());
      step_.row_lists.push_back(list);
    }
    for (size_t i = 0; i < step_.products.size(); ++i) {
      step_.products[i].rows = numbers.at(lists_[i]);
      ++step_.row_lists[step_.products[i].rows].users;
    }
    std::stable_sort(step_.products.begin(), step_.products.end(),
                     [](const Product& a, const Product& b) { return a.rows < b.rows; });
  }

 private:
  // Below the rows that are there, as one with the last ones if they go on from them.
  void append(Product& product, RowList& list, const Rows& rows,
              const std::vector<Place>& results) {
    list.count += rows.count;
    if (!list.rows.empty() && go_on(product, list.rows.back(), rows, results)) {
      list.rows.back().count += rows.count;
      return;
    }
    list.rows.push_back(rows);
    product.results.insert(product.results.end(), results.begin(), results.end());
  }

  bool go_on(const Product& product, const Rows& last, const Rows& rows,
             const std::vector<Place>& results) const {
    const Place* before = product.results.data() + product.results.size() - results.size();
    for (size_t i = 0; i < results.size(); ++i) {
      if (!follows(results[i], before[i], last.count, step_.results[i].row_stride)) return false;
    }
    for (size_t part = 0; part < rows.x.size(); ++part) {
      if (!follows(rows.x[part], last.x[part], last.count, step_.x.row_stride)) return false;
    }
    return true;
  }

  static bool follows(const Place& next, const Place& place, int64_t rows, int64_t stride) {
    return next.core == place.core && next.offset == place.offset + rows * stride;
  }

  MatmulStep& step_;
  std::vector<RowList> lists_;  // by product
  std::map<std::tuple<std::vector<Place>, int64_t, std::vector<int64_t>>, size_t> by_y_;
};

// ---- The epilogue -----------------------------------------------------------------------------

// An operand of the epilogue, which walks over rows and sticks of `out`.
void add_result(MatmulStep& step, const StepHead& head, MatmulOperand operand, OperandForm form) {
  TileOperand in_tile;
  in_tile.format = operand.format;
  in_tile.form = form;
  in_tile.strides = {operand.row_stride};
  in_tile.limits.assign(head.cores, -1);
  in_tile.address = operand.address;
  TileStep& epilogue = step.epilogue;
  epilogue.shapes.push_back({static_cast<int>(elems_per_stick(operand.format)), 1, true});
  epilogue.walks[0].kept[0].strides.push_back(operand.row_stride);
  epilogue.operands.push_back(std::move(in_tile));
  step.results.push_back(std::move(operand));
}

void parse_results(WordReader& reader, const StepHead& head, MatmulStep& step, int64_t batch_dims) {
  const int64_t count = reader.next(0, kMaxTileOperands - 1, "the number of epilogue operands");
  for (int64_t i = 0; i < count; ++i) {
    const DataFormat format = reader.format();
    if (!is_tile_format(format)) {
      reader.fail(std::string("its epilogue cannot use ") + name(format));
    }
    const auto form =
        static_cast<OperandForm>(reader.next(0, 1, "the form of an operand of the epilogue"));
    if (form == OperandForm::VECTOR && elems_per_stick(format) != step.epilogue.lanes) {
      reader.fail("operand " + std::to_string(i + 1) + " of its epilogue has " +
                  std::to_string(elems_per_stick(format)) + " elements per stick, the result " +
                  std::to_string(step.epilogue.lanes));
    }
    add_result(step, head, parse_operand(reader, head, format, batch_dims), form);
  }
}

// What does not depend on the row needs to be loaded but once, if its register stays as it is.
void split_shared_loads(MatmulStep& step) {
  std::vector<TileInstruction>& body = step.instructions;
  const auto writes = [&](int reg) {
    return std::count_if(body.begin(), body.end(), [&](const TileInstruction& in) {
      return in.opcode != STORE && in.destination == reg;
    });
  };
  const auto is_stored = [&](int operand) {
    return std::any_of(body.begin(), body.end(), [&](const TileInstruction& in) {
      return in.opcode == STORE && in.destination == operand;
    });
  };
  const auto is_shared = [&](const TileInstruction& in) {
    return in.opcode == LOAD && in.destination != 0 && step.results[in.a].row_stride == 0 &&
           writes(in.destination) == 1 && !is_stored(in.a);
  };
  std::vector<TileInstruction> rest;
  for (const TileInstruction& in : body) {
    (is_shared(in) ? step.shared_loads : rest).push_back(in);
  }
  body = std::move(rest);
}

void parse_epilogue(WordReader& reader, MatmulStep& step) {
  step.instructions = parse_instructions(reader, step.epilogue, {0});
  for (const TileInstruction& in : step.instructions) {
    if (in.opcode == WIDEN || in.opcode == NARROW) {
      reader.fail("its epilogue has widen or narrow, which sums of one stick do not allow");
    }
  }
  split_shared_loads(step);
  step.code = SpecialisedCode::translate(step.epilogue, step.instructions, {}, {});
}

// ---- The step ---------------------------------------------------------------------------------

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

MatmulStep parse_without_products(WordReader& reader, const StepHead& head) {
  constexpr int64_t kMostDims = 64;
  MatmulStep step;
  const DataFormat x = reader.format(), y = reader.format(), out = reader.format();
  for (DataFormat format : {x, y}) {
    if (!is_input_format(format)) reader.fail(std::string("it cannot multiply ") + name(format));
  }
  if (!is_input_format(out) || out == DataFormat::SEN143_FP8) {
    reader.fail(std::string("it has no results in ") + name(out));
  }
  step.large = reader.next(0, 1, "large") != 0;
  const int64_t batch_dims = reader.next(0, kMostDims, "the number of batch dimensions");
  std::vector<Extents>& extents = step.extents;
  for (int core = 0; core < head.cores; ++core) {
    std::vector<int64_t> all = reader.list(batch_dims + 3);
    for (int64_t extent : all) {
      if (extent < 0) reader.fail("an extent is " + std::to_string(extent));
    }
    extents.push_back({{all.begin(), all.begin() + batch_dims},
                       all[batch_dims],
                       all[batch_dims + 1],
                       all[batch_dims + 2]});
  }
  step.x = parse_operand(reader, head, x, batch_dims);
  step.y = parse_operand(reader, head, y, batch_dims);
  step.epilogue.lanes = static_cast<int>(elems_per_stick(out));
  step.epilogue.walks.resize(1);
  step.epilogue.walks[0].kept.resize(1);
  add_result(step, head, parse_operand(reader, head, out, batch_dims), OperandForm::VECTOR);
  step.groups = read_groups(reader, head);
  parse_results(reader, head, step, batch_dims);
  parse_epilogue(reader, step);
  for (const std::vector<int>& group : step.groups) {
    for (int core : group) {
      const Extents &is = extents[core], &first = extents[group[0]];
      if (is.batch != first.batch || is.rows != first.rows || is.columns != first.columns) {
        reader.fail("core " + std::to_string(core) + " is in the group of core " +
                    std::to_string(group[0]) + ", but has other extents");
      }
    }
  }
  return step;
}

// Numbers of the matrices of a core's rows, at one place in the batch.
class ChosenRows {
 public:
  ChosenRows(const MatmulStep::Choice& choice, const StepHead& head, const RunContext& context,
             int core)
      : choice_(choice),
        head_(head),
        first_(choice.first[core]),
        data_(resolve(choice.address, core, context)) {}

  int64_t operator()(const std::vector<int64_t>& index, int64_t row) const {
    constexpr int64_t kPerStick = 32;
    const int64_t n = choice_.along_sticks ? first_ + row : 0;
    int64_t at = n / kPerStick * choice_.stick_stride + n % kPerStick * 4;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * choice_.strides[d];
    at += row * choice_.strides.back();
    int32_t number;
    std::memcpy(&number, data_ + at, sizeof(number));
    if (number < -choice_.count || number >= choice_.count) {
      throw std::runtime_error("step '" + head_.name + "': index " + std::to_string(number) +
                               " is out of bounds for dimension with size " +
                               std::to_string(choice_.count));
    }
    return number < 0 ? number + choice_.count : number;
  }

 private:
  const MatmulStep::Choice& choice_;
  const StepHead& head_;
  const int64_t first_;
  const std::byte* data_;
};

}  // namespace

MatmulStep parse_matmul(WordReader& reader, const StepHead& head) {
  MatmulStep step = parse_without_products(reader, head);
  Collector collector(step);
  for (const std::vector<int>& group : step.groups) collector.add(group);
  collector.finish();
  return step;
}

MatmulStep::Choice read_choice(WordReader& reader, const StepHead& head, size_t batch_dims) {
  MatmulStep::Choice choice;
  choice.count = reader.next(1, INT32_MAX, "the number of matrices");
  choice.stride = reader.next();
  choice.strides = reader.list(batch_dims + 1);
  choice.along_sticks = reader.next(0, 1, "whether numbers are neighbours in sticks") != 0;
  choice.stick_stride = reader.next();
  choice.address = parse_address(reader, head);
  choice.first = reader.list(head.cores);
  for (int64_t first : choice.first) {
    if (first < 0) reader.fail("the first number of a core is " + std::to_string(first));
  }
  return choice;
}

MatmulStep parse_chosen_matmul(WordReader& reader, const StepHead& head) {
  MatmulStep step = parse_without_products(reader, head);
  step.choice = read_choice(reader, head, step.y.batch_strides.size());
  return step;
}

MatmulStep with_products(const MatmulStep& step, const StepHead& head, const RunContext& context) {
  MatmulStep made = step;
  Collector collector(made);
  for (const std::vector<int>& group : step.groups) {
    const ChosenRows chosen(*step.choice, head, context, group[0]);
    const int64_t rows = step.extents[group[0]].rows;
    collector.add(group, [&](const std::vector<int64_t>& index, auto&& put) {
      for (int64_t row = 0; row < rows;) {
        const int64_t number = chosen(index, row);
        int64_t end = row + 1;
        while (end < rows && chosen(index, end) == number) ++end;
        put(index, row, end - row, number * step.choice->stride);
        row = end;
      }
    });
  }
  collector.finish();
  return made;
}

}  // namespace spyre::card
