// A star of hosts around one switch in ns-3: TCP flows of a list, and beside them a training job that all-reduces on a ring.
//
//     host 0 ──┐        ┌── host 2        a line: 10 Gbit/s, 10 us, full duplex; at both its ends
//              ├ switch ┤                 qdisc pfifo_fast ─ device queue of one packet ─ wire
//     host 1 ──┘        └── host 3
//
// It exists to be compared with gradtide's packet engine: same scenario in, same tables out. It links against ns-3.37
// (GPL-2.0), whose own models do all that happens to a packet; this file only builds the star, starts flows and writes down when
// what happened. README.md beside it says how to run it, which settings it makes and what was compared.
//
// What it does not have: more than one job, more than one switch, a syncer that costs time.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint16_t FLOW_PORT = 1024;
constexpr uint16_t JOB_PORT = 2048;
// What is handed to a socket at once. It decides nothing: ns-3 cuts segments only when it sends them.
constexpr uint64_t WRITE_BYTES = 100'000;

struct Settings
{
    uint32_t hosts = 8;
    std::string rate = "10Gbps";
    std::string delay = "10us";
    uint32_t buffer_packets = 1000;
    double duration_s = 2;
    std::string flows;
    std::string out = ".";
    bool trace = false;
    int64_t trace_from_ns = 0;
    int64_t trace_to_ns = std::numeric_limits<int64_t>::max();
    // Timers come from the worst-case RTT of a network of this many hosts; 0: of this network.
    uint32_t timer_hosts = 0;
    bool stop_when_done = true;

    bool job = false;
    uint32_t workers = 8;
    uint32_t job_tos = 0x10;
    int32_t job_ack_tos = -1; // that of the job
    double compute_ms = 2240;
    // Every bucket is ready at once and there is one round of them: the ring alone, without compute.
    bool ready_at_once = false;
    uint32_t max_buckets = 0;
    std::string tcp = "TcpNewReno";
    bool ecn = false;
    uint32_t mark_packets = 0; // 0: pfifo_fast
};

Settings g_settings;

int64_t
Now()
{
    return Simulator::Now().GetNanoSeconds();
}

// --- counters ------------------------------------------------------------------------------------------------------------

uint64_t g_packet_hops = 0; // one packet put on one link: data, ACK or control
uint64_t g_hop_bytes = 0;   // with IP and TCP headers and the two bytes of PPP
uint64_t g_drops = 0;
uint64_t g_marks = 0;

std::ofstream g_trace;

// `link` says from where to where.
void
OnTransmit(std::string link, Ptr<const Packet> packet)
{
    ++g_packet_hops;
    g_hop_bytes += packet->GetSize();
    if (g_trace.is_open() && Now() >= g_settings.trace_from_ns && Now() < g_settings.trace_to_ns)
    {
        Ptr<Packet> copy = packet->Copy();
        PppHeader ppp;
        Ipv4Header ip;
        TcpHeader tcp;
        copy->RemoveHeader(ppp);
        copy->RemoveHeader(ip);
        copy->RemoveHeader(tcp);
        g_trace << Now() << ',' << link << ',' << packet->GetSize() << ',' << TcpHeader::FlagsToString(tcp.GetFlags(), " ")
                << ',' << tcp.GetSourcePort() << ',' << tcp.GetDestinationPort() << ',' << tcp.GetSequenceNumber() << ','
                << tcp.GetAckNumber() << ',' << copy->GetSize() << ',' << uint32_t(ip.GetTos()) << '\n';
    }
}

void
OnDrop(Ptr<const QueueDiscItem>)
{
    ++g_drops;
}

void
OnMark(Ptr<const QueueDiscItem>, const char*)
{
    ++g_marks;
}

// --- the star ------------------------------------------------------------------------------------------------------------

struct Star
{
    NodeContainer hosts;
    std::vector<Ipv4Address> address;
};

// Worst-case RTT of basic-sim's examples, from which all timers derive: README.md. Nanoseconds.
double
WorstCaseRtt(uint32_t hosts)
{
    const double serialisation_ns = 1502.0 * 8e9 / DataRate(g_settings.rate).GetBitRate();
    const double delay_ns = Time(g_settings.delay).GetNanoSeconds();
    return 100.0 * std::min<double>(20, 2 * hosts) * ((1 + 2) * serialisation_ns + delay_ns);
}

void
SetTcp()
{
    const uint32_t hosts = g_settings.timer_hosts ? g_settings.timer_hosts : g_settings.hosts;
    const double w = WorstCaseRtt(hosts);
    const auto time = [](double ns) { return TimeValue(NanoSeconds(static_cast<int64_t>(ns))); };
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TypeId::LookupByName("ns3::" + g_settings.tcp)));
    Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue(g_settings.ecn ? "On" : "Off"));
    // RFC 9438 has no such exit from slow start.
    Config::SetDefault("ns3::TcpCubic::HyStart", BooleanValue(false));
    // ns-3.37 would take proportional rate reduction (RFC 6937).
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType",
                       TypeIdValue(TypeId::LookupByName("ns3::TcpClassicRecovery")));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(NanoSeconds(1)));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1380));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::TcpNoDelay", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(32 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(32 << 20));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", time(1.5 * w));
    Config::SetDefault("ns3::RttEstimator::InitialEstimation", time(2 * w));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", time(2 * w));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", time(0.2 * w));
    Config::SetDefault("ns3::TcpSocket::PersistTimeout", time(4 * w));
    Config::SetDefault("ns3::TcpSocketBase::MaxSegLifetime", DoubleValue(5 * w / 1e9));
}

Star
BuildStar()
{
    Star star;
    star.hosts.Create(g_settings.hosts);
    NodeContainer hub;
    hub.Create(1);

    InternetStackHelper internet;
    internet.SetIpv6StackInstall(false);
    Ipv4StaticRoutingHelper routing;
    internet.SetRoutingHelper(routing);
    internet.Install(star.hosts);
    internet.Install(hub);

    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue(g_settings.rate));
    link.SetChannelAttribute("Delay", StringValue(g_settings.delay));
    link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("1p"));
    TrafficControlHelper control;
    const std::string capacity = std::to_string(g_settings.buffer_packets) + "p";
    if (g_settings.mark_packets == 0)
    {
        control.SetRootQueueDisc("ns3::PfifoFastQueueDisc", "MaxSize", StringValue(capacity));
    }
    else
    {
        // A threshold: the average is the queue itself (QW = 1), and between no whole numbers is there a probability.
        control.SetRootQueueDisc("ns3::RedQueueDisc",
                                 "MaxSize",
                                 StringValue(capacity),
                                 "MinTh",
                                 DoubleValue(g_settings.mark_packets - 0.5),
                                 "MaxTh",
                                 DoubleValue(g_settings.mark_packets),
                                 "QW",
                                 DoubleValue(1),
                                 "Gentle",
                                 BooleanValue(false),
                                 "UseEcn",
                                 BooleanValue(true),
                                 "UseHardDrop",
                                 BooleanValue(false),
                                 "LinkBandwidth",
                                 StringValue(g_settings.rate),
                                 "LinkDelay",
                                 StringValue(g_settings.delay));
    }
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.252");
    for (uint32_t i = 0; i < g_settings.hosts; ++i)
    {
        NetDeviceContainer ends = link.Install(star.hosts.Get(i), hub.Get(0));
        QueueDiscContainer qdiscs = control.Install(ends);
        Ipv4InterfaceContainer interfaces = addresses.Assign(ends);
        addresses.NewNetwork();
        star.address.push_back(interfaces.GetAddress(0));
        Ptr<Ipv4> ipv4 = star.hosts.Get(i)->GetObject<Ipv4>();
        routing.GetStaticRouting(ipv4)->SetDefaultRoute(interfaces.GetAddress(1), 1);
        for (uint32_t end = 0; end < 2; ++end)
        {
            const std::string host = "h" + std::to_string(i);
            const std::string way = end == 0 ? host + ">s" : "s>" + host;
            ends.Get(end)->TraceConnectWithoutContext("PhyTxBegin", MakeBoundCallback(&OnTransmit, way));
            qdiscs.Get(end)->TraceConnectWithoutContext("Drop", MakeCallback(&OnDrop));
            qdiscs.Get(end)->TraceConnectWithoutContext("Mark", MakeCallback(&OnMark));
        }
    }
    return star;
}

// The ToS goes with the address: Socket::Connect overwrites what SetIpTos set before.
void
ConnectWithTos(Ptr<Socket> socket, Ipv4Address address, uint16_t port, uint32_t tos)
{
    InetSocketAddress peer(address, port);
    peer.SetTos(tos);
    socket->Connect(peer);
}

// --- flows ---------------------------------------------------------------------------------------------------------------

struct Flow
{
    int64_t start_ns = 0;
    uint32_t src = 0;
    uint32_t dst = 0;
    uint64_t bytes = 0;
    uint32_t tos = 0x10;

    uint64_t written = 0;
    uint64_t received = 0;
    bool writing = false;
    int64_t connected_ns = -1;
    int64_t received_ns = -1; // last byte
    int64_t closed_ns = -1;
    const char* status = "NO_ONGOING";
};

// The highest of the three bands is 0. ToS values that pfifo_fast's priomap sends there.
uint32_t
TosOfBand(uint32_t band)
{
    const uint32_t tos[] = {0x10, 0x00, 0x08};
    NS_ABORT_MSG_IF(band > 2, "a flow's band is 0, 1 or 2, not " << band);
    return tos[band];
}

std::vector<Flow>
ReadFlows(const std::string& path)
{
    std::vector<Flow> flows;
    std::ifstream file(path);
    NS_ABORT_MSG_UNLESS(file, "cannot read " << path);
    std::string line;
    std::getline(file, line);
    std::vector<std::string> columns;
    std::string word;
    for (std::istringstream words(line); std::getline(words, word, ',');)
    {
        columns.push_back(word);
    }
    while (std::getline(file, line))
    {
        if (line.empty())
        {
            continue;
        }
        Flow flow;
        std::istringstream words(line);
        for (const std::string& column : columns)
        {
            std::getline(words, word, ',');
            const uint64_t value = std::stoull(word);
            if (column == "start_ns")
            {
                flow.start_ns = value;
            }
            else if (column == "src")
            {
                flow.src = value;
            }
            else if (column == "dst")
            {
                flow.dst = value;
            }
            else if (column == "bytes")
            {
                flow.bytes = value;
            }
            else if (column == "tos")
            {
                flow.tos = value;
            }
            else if (column == "band")
            {
                flow.tos = TosOfBand(value);
            }
            else
            {
                NS_ABORT_MSG(path << ": unknown column " << column);
            }
        }
        NS_ABORT_MSG_IF(flow.src >= g_settings.hosts || flow.dst >= g_settings.hosts || flow.src == flow.dst,
                        path << ": no such pair of hosts: " << line);
        flows.push_back(flow);
    }
    return flows;
}

// Starts flows, one connection each, and writes down their times.
class Flows
{
  public:
    Flows(const Star& star, std::vector<Flow> flows)
        : m_star(star),
          m_flows(std::move(flows))
    {
        for (uint32_t host = 0; host < star.hosts.GetN(); ++host)
        {
            Ptr<Socket> listener = Socket::CreateSocket(star.hosts.Get(host), TcpSocketFactory::GetTypeId());
            listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), FLOW_PORT));
            listener->Listen();
            // Sockets that it forks answer a FIN with their own at once. They keep ToS 0.
            listener->ShutdownSend();
            listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                        MakeCallback(&Flows::OnAccept, this));
            m_listeners.push_back(listener);
        }
        for (uint32_t i = 0; i < m_flows.size(); ++i)
        {
            Simulator::Schedule(NanoSeconds(m_flows[i].start_ns), &Flows::Start, this, i);
        }
    }

    const std::vector<Flow>& List() const
    {
        return m_flows;
    }

    std::function<void()> on_all_closed;

  private:
    void Start(uint32_t i)
    {
        Flow& flow = m_flows[i];
        Ptr<Socket> socket = Socket::CreateSocket(m_star.hosts.Get(flow.src), TcpSocketFactory::GetTypeId());
        socket->Bind();
        m_of_socket[PeekPointer(socket)] = i;
        m_sockets[i] = socket;
        socket->SetConnectCallback(MakeCallback(&Flows::OnConnected, this), MakeCallback(&Flows::OnFailed, this));
        socket->SetSendCallback(MakeCallback(&Flows::OnRoom, this));
        socket->SetCloseCallbacks(MakeCallback(&Flows::OnClosed, this), MakeCallback(&Flows::OnFailed, this));
        ConnectWithTos(socket, m_star.address[flow.dst], FLOW_PORT, flow.tos);
        socket->ShutdownRecv();
        Address local;
        socket->GetSockName(local);
        m_of_port[{m_star.address[flow.src].Get(), InetSocketAddress::ConvertFrom(local).GetPort()}] = i;
    }

    Flow& Of(Ptr<Socket> socket)
    {
        return m_flows[m_of_socket.at(PeekPointer(socket))];
    }

    void OnConnected(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        flow.connected_ns = Now() - flow.start_ns;
        flow.writing = true;
        Write(flow, socket);
    }

    void OnRoom(Ptr<Socket> socket, uint32_t)
    {
        Write(Of(socket), socket);
    }

    void Write(Flow& flow, Ptr<Socket> socket)
    {
        if (!flow.writing)
        {
            return;
        }
        while (flow.written < flow.bytes)
        {
            const uint64_t bytes = std::min(WRITE_BYTES, flow.bytes - flow.written);
            const int taken = socket->Send(Create<Packet>(bytes));
            flow.written += std::max(taken, 0);
            if (taken < 0 || static_cast<uint64_t>(taken) < bytes)
            {
                return; // the send buffer is full
            }
        }
        flow.writing = false;
        // The FIN goes out on the last data segment.
        socket->Close();
    }

    void OnClosed(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        flow.closed_ns = Now() - flow.start_ns;
        flow.status = "YES";
        Forget(socket);
    }

    void OnFailed(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        flow.closed_ns = Now() - flow.start_ns;
        flow.status = flow.connected_ns < 0 ? "NO_CONN_FAIL" : "NO_ERR_CLOSE";
        Forget(socket);
    }

    void Forget(Ptr<Socket> socket)
    {
        if (++m_closed == m_flows.size() && on_all_closed)
        {
            on_all_closed();
        }
    }

    void OnAccept(Ptr<Socket> socket, const Address& from)
    {
        const InetSocketAddress peer = InetSocketAddress::ConvertFrom(from);
        m_of_socket[PeekPointer(socket)] = m_of_port.at({peer.GetIpv4().Get(), peer.GetPort()});
        m_accepted.insert(socket);
        socket->SetRecvCallback(MakeCallback(&Flows::OnData, this));
    }

    void OnData(Ptr<Socket> socket)
    {
        Flow& flow = Of(socket);
        while (Ptr<Packet> packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                break;
            }
            flow.received += packet->GetSize();
        }
        if (flow.received == flow.bytes && flow.received_ns < 0)
        {
            flow.received_ns = Now() - flow.start_ns;
        }
    }

    const Star& m_star;
    std::vector<Flow> m_flows;
    std::vector<Ptr<Socket>> m_listeners;
    // Sockets live to the end: ns-3 has timers on them in TIME_WAIT, and an address used again would name another flow.
    std::map<uint32_t, Ptr<Socket>> m_sockets;
    std::set<Ptr<Socket>> m_accepted;
    std::map<const Socket*, uint32_t> m_of_socket;
    std::map<std::pair<uint32_t, uint16_t>, uint32_t> m_of_port;
    size_t m_closed = 0;
};

// --- the training job ----------------------------------------------------------------------------------------------------

struct Bucket
{
    uint32_t lowest_layer = 0; // its priority: smaller is sent earlier
    uint64_t bytes = 0;
    bool ready = false;
    bool done = false;
};

// The job of Gao (2020), chapter 5: L layers, fused buckets, most urgent first, no barrier, first backward then forward.
// All workers compute alike and wait for the same buckets, so one clock serves them all.
class Job
{
  public:
    explicit Job(const Star& star)
        : m_star(star)
    {
        MakeLayers();
        for (uint32_t worker = 0; worker < g_settings.workers; ++worker)
        {
            Ptr<Socket> listener = Socket::CreateSocket(star.hosts.Get(worker), TcpSocketFactory::GetTypeId());
            listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), JOB_PORT));
            listener->Listen();
            listener->SetIpTos(g_settings.job_ack_tos < 0 ? g_settings.job_tos : g_settings.job_ack_tos);
            listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                        MakeCallback(&Job::OnAccept, this));
            m_listeners.push_back(listener);
        }
        m_to_right.resize(g_settings.workers);
        m_unwritten.assign(g_settings.workers, 0);
        m_received.assign(g_settings.workers, 0);
        m_partitions.assign(g_settings.workers, 0);
        for (uint32_t worker = 0; worker < g_settings.workers; ++worker)
        {
            Simulator::Schedule(NanoSeconds(0), &Job::Connect, this, worker);
        }
    }

    struct AllReduce
    {
        uint32_t lowest_layer;
        uint64_t partition_bytes;
        int64_t start_ns;
        int64_t end_ns;
    };

    struct Iteration
    {
        int64_t backward_start_ns;
        int64_t time_ns;
    };

    const std::vector<AllReduce>& AllReduces() const
    {
        return m_all_reduces;
    }

    const std::vector<Iteration>& Iterations() const
    {
        return m_iterations;
    }

    std::function<void()> on_end;

  private:
    static constexpr uint32_t LAYERS = 50;
    static constexpr uint64_t MODEL_BYTES = 100'000'000;
    static constexpr uint64_t FUSION_BYTES = 5'333'329;

    void MakeLayers()
    {
        const uint32_t n = LAYERS;
        const double forward_ms = g_settings.compute_ms / 3;
        const double backward_ms = 2 * g_settings.compute_ms / 3;
        const double d = 2 * forward_ms / (n * (n - 1.0));
        const double e = 2 * backward_ms / (n * (n - 1.0));
        // The thesis's program keeps a layer's time in single-precision milliseconds: up to 4 ns from the formula.
        const auto ns = [](double ms) { return static_cast<int64_t>(static_cast<float>(ms) * 1e6); };
        const uint64_t s = 2 * MODEL_BYTES / (9 * n);
        std::vector<uint64_t> bytes(n);
        for (uint32_t i = 0; i < n; ++i)
        {
            m_forward_ns.push_back(ns(i == n - 1 ? d : 2 * forward_ms / n - i * d));
            m_backward_ns.push_back(ns(i == 0 ? e : i * e));
            bytes[i] = i < n / 2.0 ? s : (i <= 0.75 * n ? 4 * s : 12 * s);
        }
        m_bucket_of.resize(n);
        for (uint32_t i = n; i-- > 0;)
        {
            if (m_buckets.empty() || m_buckets.back().bytes + bytes[i] > FUSION_BYTES)
            {
                m_buckets.emplace_back();
            }
            m_buckets.back().bytes += bytes[i];
            m_buckets.back().lowest_layer = i;
            m_bucket_of[i] = m_buckets.size() - 1;
        }
    }

    // Connections: worker i writes to i + 1 and reads from i - 1.

    void Connect(uint32_t worker)
    {
        Ptr<Socket> socket = Socket::CreateSocket(m_star.hosts.Get(worker), TcpSocketFactory::GetTypeId());
        socket->Bind();
        socket->SetConnectCallback(MakeCallback(&Job::OnConnected, this), MakeCallback(&Job::OnFailed, this));
        socket->SetSendCallback(MakeCallback(&Job::OnRoom, this));
        m_to_right[worker] = socket;
        m_worker_of[PeekPointer(socket)] = worker;
        const uint32_t right = (worker + 1) % g_settings.workers;
        ConnectWithTos(socket, m_star.address[right], JOB_PORT, g_settings.job_tos);
    }

    void OnConnected(Ptr<Socket>)
    {
        if (++m_connected == g_settings.workers)
        {
            StartBackward();
        }
    }

    void OnFailed(Ptr<Socket>)
    {
        NS_ABORT_MSG("a connection of the ring failed at " << Now() << " ns");
    }

    void OnAccept(Ptr<Socket> socket, const Address&)
    {
        m_worker_of[PeekPointer(socket)] = socket->GetNode()->GetId();
        m_accepted.push_back(socket);
        socket->SetRecvCallback(MakeCallback(&Job::OnData, this));
    }

    // Compute.

    void StartBackward()
    {
        m_iterations.push_back({Now(), -1});
        for (Bucket& bucket : m_buckets)
        {
            bucket.ready = bucket.done = false;
        }
        if (g_settings.ready_at_once)
        {
            for (Bucket& bucket : m_buckets)
            {
                bucket.ready = true;
                StartNext();
            }
            return;
        }
        Simulator::Schedule(NanoSeconds(m_backward_ns[LAYERS - 1]), &Job::OnBackward, this, LAYERS - 1);
    }

    void OnBackward(uint32_t layer)
    {
        Bucket& bucket = m_buckets[m_bucket_of[layer]];
        if (bucket.lowest_layer == layer)
        {
            bucket.ready = true;
            StartNext();
        }
        if (layer == 0)
        {
            TryForward(0);
            return;
        }
        Simulator::Schedule(NanoSeconds(m_backward_ns[layer - 1]), &Job::OnBackward, this, layer - 1);
    }

    void TryForward(uint32_t layer)
    {
        m_waiting_layer = layer;
        if (m_buckets[m_bucket_of[layer]].done)
        {
            m_waiting_layer = LAYERS;
            Simulator::Schedule(NanoSeconds(m_forward_ns[layer]), &Job::OnForward, this, layer);
        }
    }

    void OnForward(uint32_t layer)
    {
        if (layer + 1 < LAYERS)
        {
            TryForward(layer + 1);
            return;
        }
        m_iterations.back().time_ns = Now() - m_iterations.back().backward_start_ns;
        StartBackward();
    }

    // Communication: one bucket at a time, 2 (N - 1) partitions each.

    void StartNext()
    {
        if (m_running)
        {
            return;
        }
        for (Bucket& bucket : m_buckets)
        {
            if (bucket.ready && !bucket.done && (!m_running || bucket.lowest_layer < m_running->lowest_layer))
            {
                m_running = &bucket;
            }
        }
        if (!m_running)
        {
            return;
        }
        m_start_ns = Now();
        m_finished = 0;
        for (uint32_t worker = 0; worker < g_settings.workers; ++worker)
        {
            m_received[worker] = 0;
            m_partitions[worker] = 0;
            SendPartition(worker);
        }
    }

    uint64_t PartitionBytes() const
    {
        return m_running->bytes / g_settings.workers;
    }

    void SendPartition(uint32_t worker)
    {
        m_unwritten[worker] += PartitionBytes();
        Write(worker);
    }

    void OnRoom(Ptr<Socket> socket, uint32_t)
    {
        Write(m_worker_of.at(PeekPointer(socket)));
    }

    void Write(uint32_t worker)
    {
        while (m_unwritten[worker] > 0)
        {
            const uint64_t bytes = std::min(WRITE_BYTES, m_unwritten[worker]);
            m_unwritten[worker] -= bytes;
            const int taken = m_to_right[worker]->Send(Create<Packet>(bytes));
            if (taken < 0 || static_cast<uint64_t>(taken) < bytes)
            {
                m_unwritten[worker] += bytes - std::max(taken, 0);
                return;
            }
        }
    }

    void OnData(Ptr<Socket> socket)
    {
        const uint32_t worker = m_worker_of.at(PeekPointer(socket));
        while (Ptr<Packet> packet = socket->Recv())
        {
            if (packet->GetSize() == 0)
            {
                break;
            }
            m_received[worker] += packet->GetSize();
        }
        const uint32_t steps = 2 * (g_settings.workers - 1);
        while (m_running && m_partitions[worker] < steps && m_received[worker] >= PartitionBytes())
        {
            m_received[worker] -= PartitionBytes();
            if (++m_partitions[worker] < steps)
            {
                SendPartition(worker);
            }
            else if (++m_finished == g_settings.workers)
            {
                Finish();
            }
        }
    }

    void Finish()
    {
        m_all_reduces.push_back({m_running->lowest_layer, PartitionBytes(), m_start_ns, Now()});
        m_running->done = true;
        m_running = nullptr;
        if (g_settings.max_buckets && m_all_reduces.size() == g_settings.max_buckets)
        {
            on_end();
            return;
        }
        StartNext();
        if (!m_running && g_settings.ready_at_once)
        {
            on_end();
            return;
        }
        if (m_waiting_layer < LAYERS)
        {
            TryForward(m_waiting_layer);
        }
    }

    const Star& m_star;
    std::vector<int64_t> m_forward_ns;
    std::vector<int64_t> m_backward_ns;
    std::vector<Bucket> m_buckets;
    std::vector<uint32_t> m_bucket_of;
    uint32_t m_waiting_layer = LAYERS;

    std::vector<Ptr<Socket>> m_listeners;
    std::vector<Ptr<Socket>> m_accepted;
    std::vector<Ptr<Socket>> m_to_right;
    std::map<const Socket*, uint32_t> m_worker_of;
    uint32_t m_connected = 0;

    Bucket* m_running = nullptr;
    int64_t m_start_ns = 0;
    uint32_t m_finished = 0;
    std::vector<uint64_t> m_unwritten;
    std::vector<uint64_t> m_received;
    std::vector<uint32_t> m_partitions;

    std::vector<AllReduce> m_all_reduces;
    std::vector<Iteration> m_iterations;
};

// --- results -------------------------------------------------------------------------------------------------------------

double
CpuSeconds()
{
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec + 1e-6 * (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

long
PeakRssKb()
{
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

void
WriteFlows(const std::vector<Flow>& flows)
{
    std::ofstream file(g_settings.out + "/fct.csv");
    file << "flow_id,start_ns,src,dst,bytes,tos,fct_close_ns,fct_rx_ns,conn_ns,status\n";
    for (size_t i = 0; i < flows.size(); ++i)
    {
        const Flow& f = flows[i];
        file << i << ',' << f.start_ns << ',' << f.src << ',' << f.dst << ',' << f.bytes << ',' << f.tos << ','
             << f.closed_ns << ',' << f.received_ns << ',' << f.connected_ns << ',' << f.status << '\n';
    }
}

void
WriteJob(const Job& job)
{
    std::ofstream iterations(g_settings.out + "/iters.csv");
    iterations << "worker,iteration,bp_start_ns,iter_time_ns\n";
    for (uint32_t worker = 0; worker < g_settings.workers; ++worker)
    {
        for (size_t i = 0; i < job.Iterations().size(); ++i)
        {
            const Job::Iteration& it = job.Iterations()[i];
            iterations << worker << ',' << i << ',' << it.backward_start_ns << ',' << it.time_ns << '\n';
        }
    }
    std::ofstream all_reduces(g_settings.out + "/allreduce.csv");
    all_reduces << "fused_prio,partition_bytes,start_ns,end_ns\n";
    for (const Job::AllReduce& a : job.AllReduces())
    {
        all_reduces << a.lowest_layer << ',' << a.partition_bytes << ',' << a.start_ns << ',' << a.end_ns << '\n';
    }
}

} // namespace

int
main(int argc, char* argv[])
{
    Settings& s = g_settings;
    CommandLine cmd(__FILE__);
    cmd.AddValue("hosts", "hosts of the star", s.hosts);
    cmd.AddValue("rate", "rate of every link", s.rate);
    cmd.AddValue("delay", "propagation delay of every link", s.delay);
    cmd.AddValue("buffer_packets", "size of every qdisc", s.buffer_packets);
    cmd.AddValue("duration_s", "simulated time", s.duration_s);
    cmd.AddValue("flows", "CSV: start_ns,src,dst,bytes and, optionally, band (0 high .. 2 low) or tos", s.flows);
    cmd.AddValue("out", "folder of the results", s.out);
    cmd.AddValue("trace", "also write trace.csv: every packet as its transmission starts", s.trace);
    cmd.AddValue("trace_from_ns", "only packets whose transmission starts at this time or later", s.trace_from_ns);
    cmd.AddValue("trace_to_ns", "only packets whose transmission starts before this time", s.trace_to_ns);
    cmd.AddValue("timer_hosts", "hosts from which the timers derive; 0: as many as there are", s.timer_hosts);
    cmd.AddValue("stop_when_done", "end when every flow has closed, unless there is a job", s.stop_when_done);
    cmd.AddValue("job", "run the training job too", s.job);
    cmd.AddValue("workers", "workers of the job", s.workers);
    cmd.AddValue("job_tos", "ToS of what the job sends", s.job_tos);
    cmd.AddValue("job_ack_tos", "ToS of ACKs that the job's receivers send; -1: job_tos", s.job_ack_tos);
    cmd.AddValue("compute_ms", "compute time of one iteration, forward and backward", s.compute_ms);
    cmd.AddValue("ready_at_once", "all buckets ready at the start, one round, no compute", s.ready_at_once);
    cmd.AddValue("tcp", "congestion control: TcpNewReno, TcpCubic or TcpDctcp", s.tcp);
    cmd.AddValue("ecn", "connections negotiate ECN", s.ecn);
    cmd.AddValue("mark_packets", "every qdisc has one band and marks from this length on; 0: pfifo_fast", s.mark_packets);
    cmd.AddValue("max_buckets", "end after this many buckets; 0: no such end", s.max_buckets);
    cmd.Parse(argc, argv);
    NS_ABORT_MSG_IF(s.job && s.workers > s.hosts, "more workers than hosts");

    const auto wall_start = std::chrono::steady_clock::now();
    Time::SetResolution(Time::NS);
    if (s.trace)
    {
        g_trace.open(s.out + "/trace.csv");
        g_trace << "start_ns,link,bytes,flags,src_port,dst_port,seq,ack,payload_bytes,tos\n";
    }
    SetTcp();
    const Star star = BuildStar();
    Flows flows(star, s.flows.empty() ? std::vector<Flow>() : ReadFlows(s.flows));
    std::unique_ptr<Job> job;
    if (s.job)
    {
        job = std::make_unique<Job>(star);
        job->on_end = [] { Simulator::Stop(); };
    }
    else if (s.stop_when_done)
    {
        // A little later, so that the last FINs and ACKs count.
        flows.on_all_closed = [] { Simulator::Stop(MilliSeconds(10)); };
    }
    const double setup_s = CpuSeconds();
    Simulator::Stop(NanoSeconds(std::llround(s.duration_s * 1e9)));
    Simulator::Run();
    const double cpu_s = CpuSeconds() - setup_s;
    const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_start).count();
    const double sim_s = Simulator::Now().GetSeconds();
    const uint64_t events = Simulator::GetEventCount();

    WriteFlows(flows.List());
    if (job)
    {
        WriteJob(*job);
    }
    std::ofstream summary(s.out + "/summary.json");
    summary << "{\"engine\":\"ns-3.37\",\"sim_s\":" << sim_s << ",\"wall_s\":" << wall_s << ",\"cpu_s\":" << cpu_s
            << ",\"setup_s\":" << setup_s << ",\"events\":" << events << ",\"events_per_cpu_s\":" << events / cpu_s
            << ",\"packet_hops\":" << g_packet_hops << ",\"packet_hops_per_cpu_s\":" << g_packet_hops / cpu_s
            << ",\"hop_bytes\":" << g_hop_bytes << ",\"qdisc_drops\":" << g_drops
            << (g_settings.mark_packets ? ",\"ce_marks\":" + std::to_string(g_marks) : "")
            << ",\"peak_rss_kb\":" << PeakRssKb() << ",\"flows\":" << flows.List().size()
            << ",\"allreduces\":" << (job ? job->AllReduces().size() : 0) << "}\n";
    // No Simulator::Destroy(): it would only take time to free what the end of the process frees.
}
