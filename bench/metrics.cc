#include "bench/metrics.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace verbena::bench {

std::string MetricsPage(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) return "";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  const timeval second = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  static constexpr char kRequest[] =
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::string page;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, kRequest, sizeof(kRequest) - 1, MSG_NOSIGNAL) > 0) {
    char part[16384];
    ssize_t got = 0;
    while ((got = recv(fd, part, sizeof(part), 0)) > 0) page.append(part, static_cast<size_t>(got));
  }
  close(fd);
  return page;
}

int64_t MetricSum(const std::string& page, const std::string& name) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (line.substr(0, name.size() + 1) != absl::StrCat(name, "{")) continue;
    double value = 0;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
  }
  return static_cast<int64_t>(sum);
}

}  // namespace verbena::bench
