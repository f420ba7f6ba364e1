// Flows that start together, or one gradient exchange, on a star or a Clos network of SimGrid (S4U, network model CM02
// with every correction off): when they are over, and what that cost. `exchange --help` lists what can be set.
//
// A rank is an actor that obeys the one rule of docs/models/collectives.md: its step begins when it has begun the step
// before and every message sent to it in the step before has arrived. Mailboxes have a permanent receiver, so that a
// message sets out when it is sent and does not wait until its receiver asks for it.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <simgrid/s4u.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

namespace {

struct Options {
  std::string network = "clos2";
  unsigned ports = 16;
  unsigned divisor = 1;
  unsigned hosts = 8;
  double rate_bps = 32e9;
  double delay_ns = 200;
  std::string collective;
  std::uint64_t bytes = 100'000'000;
  std::string flows;
  std::string out;
};

const char* const USAGE =
    "exchange --collective=NAME | --flows=FILE  [--option=value ...]\n"
    "  --network=clos2|clos3|leaf-spine|star   (clos2)\n"
    "  --ports=K --divisor=D            an edge switch has K/2 hosts and K/2/D ways up (16, 1)\n"
    "  --hosts=N                        of a star or a leaf-spine network (8); Clos networks are full\n"
    "  --rate_bps=R --delay_ns=T        of every link (32e9, 200)\n"
    "  --collective=NAME                ring, all-to-all, butterfly, butterfly-layered, ps-packed, ps-distributed\n"
    "  --bytes=S                        of each rank (100000000); must divide into the collective's parts\n"
    "  --flows=FILE                     CSV with the columns src,dst,bytes; all start at 0\n"
    "  --out=FILE                       when each flow has finished, as CSV\n";

Options parse(int argc, char** argv) {
  Options options;
  std::map<std::string, std::function<void(const std::string&)>> setters;
  const auto number = [&](const char* name, unsigned& field) {
    setters[name] = [&field](const std::string& value) { field = static_cast<unsigned>(std::stoul(value)); };
  };
  const auto real = [&](const char* name, double& field) {
    setters[name] = [&field](const std::string& value) { field = std::stod(value); };
  };
  const auto text = [&](const char* name, std::string& field) {
    setters[name] = [&field](const std::string& value) { field = value; };
  };
  text("network", options.network);
  number("ports", options.ports);
  number("divisor", options.divisor);
  number("hosts", options.hosts);
  real("rate_bps", options.rate_bps);
  real("delay_ns", options.delay_ns);
  text("collective", options.collective);
  setters["bytes"] = [&options](const std::string& value) { options.bytes = std::stoull(value); };
  text("flows", options.flows);
  text("out", options.out);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const auto setter = argument.rfind("--", 0) == 0 ? setters.find(argument.substr(2, equals - 2)) : setters.end();
    if (setter == setters.end() || equals == std::string::npos)
      throw std::invalid_argument("not understood: " + argument + "\n" + USAGE);
    setter->second(argument.substr(equals + 1));
  }
  if (options.collective.empty() == options.flows.empty())
    throw std::invalid_argument(std::string("either --collective or --flows\n") + USAGE);
  return options;
}

// The network -----------------------------------------------------------------------------------------------------

struct Fabric {
  std::vector<sg4::Host*> hosts;
  unsigned group;  // hosts of an edge switch
};

Fabric star(const Options& options) {
  auto* zone = sg4::create_star_zone("star");
  Fabric fabric{{}, options.hosts};
  for (unsigned i = 0; i < options.hosts; ++i) {
    const auto name = std::to_string(i);
    auto* host = zone->create_host(name, 1e9);
    const auto* link = zone->create_split_duplex_link("link" + name, options.rate_bps / 8)
                           ->set_latency(options.delay_ns * 1e-9)
                           ->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{link, sg4::LinkInRoute::Direction::UP}}, true);
    fabric.hosts.push_back(host);
  }
  zone->seal();
  return fabric;
}

Fabric fat_tree(const Options& options) {
  const unsigned half = options.ports / 2;
  if (options.ports % 2 != 0 || options.divisor == 0 || half % options.divisor != 0)
    throw std::invalid_argument("a switch takes an even number of ports, and there are whole switches only");
  if (options.network == "leaf-spine" && options.hosts % half != 0)
    throw std::invalid_argument("--hosts is no whole number of leaves");
  const unsigned up = half / options.divisor;
  Fabric fabric{{}, half};
  const auto host = [&fabric](sg4::NetZone* zone, const std::vector<unsigned long>&, unsigned long id) {
    fabric.hosts.push_back(zone->create_host(std::to_string(id), 1e9));
    return std::make_pair(fabric.hosts.back()->get_netpoint(), static_cast<simgrid::kernel::routing::NetPoint*>(nullptr));
  };
  const unsigned leaves = options.network == "leaf-spine" ? options.hosts / half : options.ports;
  const sg4::FatTreeParams two{2, {half, leaves}, {1, up}, {1, 1}};
  const sg4::FatTreeParams three{3, {half, half, options.ports}, {1, up, half}, {1, 1, 1}};
  sg4::create_fatTree_zone(options.network, nullptr, options.network == "clos3" ? three : two,
                           sg4::ClusterCallbacks(host), options.rate_bps / 8, options.delay_ns * 1e-9,
                           sg4::Link::SharingPolicy::SPLITDUPLEX)
      ->seal();
  return fabric;
}

Fabric build(const Options& options) {
  if (options.network == "star") return star(options);
  if (options.network == "clos2" || options.network == "clos3" || options.network == "leaf-spine")
    return fat_tree(options);
  throw std::invalid_argument("no such network: " + options.network);
}

// Collectives -----------------------------------------------------------------------------------------------------

using Send = std::function<void(unsigned to, std::uint64_t bytes)>;

// Who sends what to whom.
struct Plan {
  unsigned steps = 0;
  std::function<void(unsigned step, unsigned rank, const Send&)> sends;
  std::function<unsigned(unsigned step, unsigned rank)> receives;
  // Steps in which a rank also waits for the arrival of what it sends.
  std::function<bool(unsigned step)> awaited = [](unsigned) { return false; };
  // Whether a message of a later step may reach a rank before one of an earlier step; if so, each has its mailbox.
  bool overtakes = false;
};

unsigned log2_exact(unsigned n) {
  unsigned steps = 0;
  while (1U << steps < n) ++steps;
  if (1U << steps != n) throw std::invalid_argument(std::to_string(n) + " is no power of two");
  return steps;
}

std::uint64_t part(const Options& options, unsigned count) {
  if (options.bytes % count != 0) throw std::invalid_argument("--bytes has no " + std::to_string(count) + " equal parts");
  return options.bytes / count;
}

Plan ring(unsigned n, std::uint64_t bytes) {
  return {2 * (n - 1), [=](unsigned, unsigned rank, const Send& send) { send((rank + 1) % n, bytes); },
          [](unsigned, unsigned) { return 1; }};
}

Plan all_to_all(unsigned n, std::uint64_t bytes) {
  const auto sends = [=](unsigned, unsigned rank, const Send& send) {
    for (unsigned distance = 1; distance < n; ++distance) send((rank + distance) % n, bytes);
  };
  return {1, sends, [=](unsigned, unsigned) { return n - 1; }};
}

Plan butterfly(unsigned n, std::uint64_t bytes) {
  return {log2_exact(n), [=](unsigned step, unsigned rank, const Send& send) { send(rank ^ (1U << step), bytes); },
          [](unsigned, unsigned) { return 1; }, [](unsigned) { return false; }, true};
}

// Binomial reduce to the first rank of each group, a butterfly among these, binomial broadcast, largest subtree first.
Plan butterfly_layered(unsigned n, unsigned group, std::uint64_t bytes) {
  const unsigned inside = log2_exact(group), heads = log2_exact(n / group), down = inside + heads;
  const auto sends = [=](unsigned step, unsigned rank, const Send& send) {
    if (step < inside) {
      if (rank % (2U << step) == 1U << step) send(rank - (1U << step), bytes);
    } else if (step < down) {
      if (rank % group == 0) send(rank ^ (group << (step - inside)), bytes);
    } else {
      const unsigned subtree = group >> (step - down + 1);
      if (rank % (2 * subtree) == 0) send(rank + subtree, bytes);
    }
  };
  const auto receives = [=](unsigned step, unsigned rank) -> unsigned {
    if (step < inside) return rank % (2U << step) == 0;
    if (step < down) return rank % group == 0;
    const unsigned subtree = group >> (step - down + 1);
    return rank % (2 * subtree) == subtree;
  };
  return {down + inside, sends, receives, [=](unsigned step) { return step >= down; }, true};
}

// Workers push a part to every server, which sends the sum to all workers once it has everything.
Plan parameter_server(unsigned n, const std::vector<unsigned>& servers, std::uint64_t bytes) {
  std::vector<bool> serves(n);
  for (const auto server : servers) serves[server] = true;
  std::vector<unsigned> workers;
  for (unsigned rank = 0; rank < n; ++rank)
    if (!serves[rank]) workers.push_back(rank);
  std::vector<unsigned> number(n);  // of a worker among workers: with this server it begins
  for (unsigned i = 0; i < workers.size(); ++i) number[workers[i]] = i;
  const auto sends = [=](unsigned step, unsigned rank, const Send& send) {
    if (step == 0 && !serves[rank])
      for (unsigned i = 0; i < servers.size(); ++i) send(servers[(number[rank] + i) % servers.size()], bytes);
    if (step == 1 && serves[rank])
      for (const auto worker : workers) send(worker, bytes);
  };
  const auto receives = [=](unsigned step, unsigned rank) -> unsigned {
    if (serves[rank]) return step == 0 ? workers.size() : 0;
    return step == 0 ? 0 : servers.size();
  };
  return {2, sends, receives};
}

Plan plan(const Options& options, unsigned n, unsigned group) {
  const auto& name = options.collective;
  if (name == "ring") return ring(n, part(options, n));
  if (name == "all-to-all") return all_to_all(n, part(options, n));
  if (name == "butterfly") return butterfly(n, options.bytes);
  if (name == "butterfly-layered") return butterfly_layered(n, group, options.bytes);
  if (name == "ps-packed" || name == "ps-distributed") {
    // One rank in eight is a server: the first ones, or one of every eight, at the next place each time.
    std::vector<unsigned> servers;
    for (unsigned j = 0; j < n / 8; ++j) servers.push_back(name == "ps-packed" ? j : 8 * j + j % 8);
    return parameter_server(n, servers, part(options, n / 8));
  }
  throw std::invalid_argument("no such collective: " + name);
}

// Simulation ------------------------------------------------------------------------------------------------------

std::size_t run_collective(const sg4::Engine& engine, const Plan& plan, const std::vector<sg4::Host*>& hosts) {
  std::size_t messages = 0;
  int nothing = 0;
  const auto mailbox = [&](unsigned step, unsigned rank) {
    const auto name = std::to_string(rank);
    return sg4::Mailbox::by_name(plan.overtakes ? name + ":" + std::to_string(step) : name);
  };
  const auto work = [&](unsigned rank) {
    // Nothing is detached, and what has arrived is waited for: SimGrid 3.32 keeps what is detached, and what an actor
    // has not waited for, in lists that it walks for each communication that ends.
    const auto has_arrived = [](const sg4::CommPtr& comm) { return comm->get_remaining() == 0 && comm->wait() != nullptr; };
    std::vector<sg4::CommPtr> sent;
    for (unsigned step = 0; step < plan.steps; ++step) {
      sent.erase(std::remove_if(sent.begin(), sent.end(), has_arrived), sent.end());
      plan.sends(step, rank, [&](unsigned to, std::uint64_t bytes) {
        ++messages;
        sent.push_back(mailbox(step, to)->put_async(&nothing, bytes));
      });
      const unsigned count = plan.receives(step, rank);
      for (unsigned i = 0; i < count; ++i) mailbox(step, rank)->get<int>();
      if (plan.awaited(step)) {
        sg4::Comm::wait_all(sent);
        sent.clear();
      }
    }
    sg4::Comm::wait_all(sent);
  };
  for (unsigned rank = 0; rank < hosts.size(); ++rank) {
    const auto actor = sg4::Actor::create(std::to_string(rank), hosts[rank], work, rank);
    for (unsigned step = 0; step < (plan.overtakes ? plan.steps : 1); ++step)
      mailbox(step, rank)->set_receiver(actor);
  }
  engine.run();
  return messages;
}

std::size_t run_flows(const sg4::Engine& engine, const Options& options, const std::vector<sg4::Host*>& hosts) {
  std::ifstream file(options.flows);
  std::string line;
  if (!std::getline(file, line) || line.rfind("src,dst,bytes", 0) != 0)
    throw std::invalid_argument("no flows in " + options.flows);
  std::vector<sg4::CommPtr> flows;
  while (std::getline(file, line)) {
    unsigned src, dst;
    unsigned long long bytes;
    if (std::sscanf(line.c_str(), "%u,%u,%llu", &src, &dst, &bytes) != 3 || src >= hosts.size() || dst >= hosts.size())
      throw std::invalid_argument("no flow: " + line);
    flows.push_back(sg4::Comm::sendto_init(hosts[src], hosts[dst])->set_payload_size(bytes));
    flows.back()->start();
  }
  engine.run();
  if (!options.out.empty()) {
    std::ofstream out(options.out);
    out.precision(12);
    out << "flow,finish_s\n";
    for (std::size_t flow = 0; flow < flows.size(); ++flow) out << flow << ',' << flows[flow]->get_finish_time() << '\n';
  }
  return flows.size();
}

// Of this program alone: ru_maxrss would count the one that started it.
double peak_megabytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    // SimGrid sees none of the arguments; it would tell of every setting.
    std::string name = argv[0], quiet = "--log=xbt_cfg.thresh:warning";
    std::vector<char*> arguments{name.data(), quiet.data(), nullptr};
    int argument_count = 2;
    sg4::Engine engine(&argument_count, arguments.data());
    const auto options = parse(argc, argv);
    for (const auto* setting : {"network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1",
                                "network/weight-S:0", "network/TCP-gamma:0", "network/crosstraffic:0", "contexts/stack-size:64"})
      sg4::Engine::set_config(setting);
    const auto fabric = build(options);
    const auto messages = options.collective.empty()
                              ? run_flows(engine, options, fabric.hosts)
                              : run_collective(engine, plan(options, fabric.hosts.size(), fabric.group), fabric.hosts);
    std::printf("{\"hosts\": %zu, \"messages\": %zu, \"simulated_s\": %.12g, \"peak_rss_mb\": %.1f}\n",
                fabric.hosts.size(), messages, sg4::Engine::get_clock(),
                peak_megabytes());
  } catch (const std::exception& error) {
    std::cerr << "exchange: " << error.what() << '\n';
    return 1;
  }
}
