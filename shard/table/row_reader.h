// Reads the contents of many rows of a slice. Rows that are not in memory are read from the cold
// store synchronously, some rows at a time. No row becomes hot by that.
//
// **Thread safety**: one owner thread. Rows are neither made nor changed meanwhile.
#ifndef VERBENA_SHARD_TABLE_ROW_READER_H_
#define VERBENA_SHARD_TABLE_ROW_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "shard/table/row_store.h"

namespace verbena::shard {

class RowReader {
 public:
  // Both outlive it.
  RowReader(const RowStore& rows, absl::Span<const uint32_t> which) : rows_(rows), which_(which) {}
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // The content of the next row of `which`, valid until the next call. Null: it cannot be read,
  // which the shard's ColdIo has recorded.
  const std::byte* Next() {
    const size_t at = next_++;
    return rows_.tiered() ? NextTiered(at) : rows_.content(which_[at]);
  }

 private:
  const std::byte* NextTiered(size_t at);
  bool ReadAhead(size_t from);

  const RowStore& rows_;
  const absl::Span<const uint32_t> which_;
  size_t next_ = 0;
  size_t ahead_ = 0;  // those before have been looked at
  size_t taken_ = 0;  // of read_
  std::vector<std::byte> read_, initial_;
  std::vector<uint64_t> keys_;  // scratch of ReadAhead()
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_READER_H_
