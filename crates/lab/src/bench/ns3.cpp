// The scenarios of the bench `sim` in ns-3: TCP NewReno over a dumb-bell with
// one string or two. Prints CPU seconds, events and the time that the last
// packet of data arrived.
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include <ctime>
#include <iostream>
#include <unordered_map>

using namespace ns3;

// Routes by address: ns-3's own tables are searched line by line.
class Table : public Ipv4RoutingProtocol
{
  public:
    std::unordered_map<uint32_t, uint32_t> interfaces;
    uint32_t otherwise = 1;

    Ptr<Ipv4Route> Find(Ipv4Address to)
    {
        auto it = interfaces.find(to.Get());
        uint32_t interface = it == interfaces.end() ? otherwise : it->second;
        Ptr<Ipv4Route> route = Create<Ipv4Route>();
        route->SetDestination(to);
        route->SetSource(m_ipv4->GetAddress(interface, 0).GetLocal());
        route->SetGateway(Ipv4Address::GetZero());
        route->SetOutputDevice(m_ipv4->GetNetDevice(interface));
        return route;
    }

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header& header, Ptr<NetDevice>,
                               Socket::SocketErrno& error) override
    {
        error = Socket::ERROR_NOTERROR;
        return Find(header.GetDestination());
    }

    bool RouteInput(Ptr<const Packet> packet, const Ipv4Header& header, Ptr<const NetDevice> device,
                    const UnicastForwardCallback& forward, const MulticastForwardCallback&,
                    const LocalDeliverCallback& deliver, const ErrorCallback&) override
    {
        uint32_t interface = m_ipv4->GetInterfaceForDevice(device);
        if (m_ipv4->IsDestinationAddress(header.GetDestination(), interface))
        {
            deliver(packet, header, interface);
        }
        else
        {
            forward(Find(header.GetDestination()), packet, header);
        }
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void SetIpv4(Ptr<Ipv4> ipv4) override { m_ipv4 = ipv4; }
    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}

  private:
    Ptr<Ipv4> m_ipv4;
};

class TableHelper : public Ipv4RoutingHelper
{
  public:
    TableHelper* Copy() const override { return new TableHelper; }
    Ptr<Ipv4RoutingProtocol> Create(Ptr<Node>) const override { return CreateObject<Table>(); }
};

static Ptr<Table> TableOf(Ptr<Node> node)
{
    return DynamicCast<Table>(node->GetObject<Ipv4>()->GetRoutingProtocol());
}

// A link and the interfaces at its ends.
struct Wire
{
    NetDeviceContainer devices;
    uint32_t left, right;
    Ipv4Address leftAddress, rightAddress;
};

static Wire Connect(Ptr<Node> left, Ptr<Node> right, double delayMs, uint32_t packets)
{
    static uint32_t addresses = 0x0a000001;
    PointToPointHelper helper;
    helper.SetDeviceAttribute("DataRate", StringValue("100Mbps"));
    helper.SetChannelAttribute("Delay", TimeValue(MilliSeconds(delayMs)));
    helper.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize",
                    StringValue(std::to_string(packets) + "p"));
    Wire wire;
    wire.devices = helper.Install(left, right);
    auto add = [&](Ptr<Node> node, uint32_t end, Ipv4Address& address) {
        // By hand: the address helper would add a queue discipline.
        Ptr<Ipv4> ipv4 = node->GetObject<Ipv4>();
        uint32_t interface = ipv4->AddInterface(wire.devices.Get(end));
        address = Ipv4Address(addresses++);
        ipv4->AddAddress(interface, Ipv4InterfaceAddress(address, Ipv4Mask(0xffffffff)));
        ipv4->SetUp(interface);
        return interface;
    };
    wire.left = add(left, 0, wire.leftAddress);
    wire.right = add(right, 1, wire.rightAddress);
    return wire;
}

static Time g_last;

static void Received(Ptr<const Packet>, const Address&)
{
    g_last = Simulator::Now();
}

struct Plan
{
    uint32_t flows, strings, segments, window, buffer;
    double delaysMs[4], everyMs, endS;
};

static void Configure(const Plan& plan)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpNewReno"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1460));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(8 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(plan.window * 1460));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(3)));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(MilliSeconds(200)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
}

int main(int argc, char** argv)
{
    const Plan active{100, 2, 3000, 5700, 750, {40, 2, 2, 6}, 250, 60};
    const Plan thousand{1000, 1, 1000, 64, 100000, {45, 2, 2, 1}, 1, 3600};
    const bool fails = argc > 1 && std::string(argv[1]) == "active";
    const Plan& plan = fails ? active : thousand;
    const uint32_t wide = 100000;
    Configure(plan);

    NodeContainer nodes(2 + plan.strings + 2 * plan.flows);
    InternetStackHelper internet;
    internet.SetIpv6StackInstall(false);
    internet.SetRoutingHelper(TableHelper());
    internet.Install(nodes);
    Ptr<Node> in = nodes.Get(0), out = nodes.Get(1);
    std::vector<Wire> before, behind;
    for (uint32_t string = 0; string < plan.strings; string++)
    {
        Ptr<Node> node = nodes.Get(2 + string);
        before.push_back(Connect(in, node, plan.delaysMs[1], plan.buffer));
        behind.push_back(Connect(node, out, plan.delaysMs[2], wide));
    }
    std::vector<std::pair<Ipv4Address, Ipv4Address>> moved;
    for (uint32_t flow = 0; flow < plan.flows; flow++)
    {
        uint32_t string = flow % plan.strings;
        Ptr<Node> source = nodes.Get(2 + plan.strings + 2 * flow);
        Ptr<Node> sink = nodes.Get(3 + plan.strings + 2 * flow);
        Wire access = Connect(source, in, plan.delaysMs[0], wide);
        Wire egress = Connect(out, sink, plan.delaysMs[3], wide);
        Ipv4Address from = access.leftAddress, to = egress.rightAddress;
        TableOf(in)->interfaces[from.Get()] = access.right;
        TableOf(in)->interfaces[to.Get()] = before[string].left;
        TableOf(out)->interfaces[to.Get()] = egress.left;
        TableOf(out)->interfaces[from.Get()] = behind[string].right;
        for (uint32_t each = 0; each < plan.strings; each++)
        {
            Ptr<Table> table = TableOf(nodes.Get(2 + each));
            table->interfaces[from.Get()] = before[each].right;
            table->interfaces[to.Get()] = behind[each].left;
        }
        if (string == 0)
        {
            moved.emplace_back(from, to);
        }
        BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(to, 9));
        bulk.SetAttribute("MaxBytes", UintegerValue(uint64_t(plan.segments) * 1460));
        bulk.SetAttribute("SendSize", UintegerValue(1460));
        bulk.Install(source).Start(MilliSeconds(plan.everyMs * (flow / plan.strings)));
        PacketSinkHelper receive("ns3::TcpSocketFactory",
                                 InetSocketAddress(Ipv4Address::GetAny(), 9));
        receive.Install(sink).Get(0)->TraceConnectWithoutContext("Rx", MakeCallback(&Received));
    }
    if (fails)
    {
        Simulator::Schedule(Seconds(5), [&] {
            for (auto& devices : {before[0].devices, behind[0].devices})
            {
                for (uint32_t end = 0; end < 2; end++)
                {
                    auto model = CreateObject<RateErrorModel>();
                    model->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
                    model->SetRate(1);
                    devices.Get(end)->SetAttribute("ReceiveErrorModel", PointerValue(model));
                }
            }
        });
        Simulator::Schedule(Seconds(8), [&] {
            for (auto& [from, to] : moved)
            {
                TableOf(in)->interfaces[to.Get()] = before[1].left;
                TableOf(out)->interfaces[from.Get()] = behind[1].right;
            }
        });
    }
    Simulator::Stop(Seconds(plan.endS));
    Simulator::Run();
    std::cout << double(std::clock()) / CLOCKS_PER_SEC << " " << Simulator::GetEventCount() << " "
              << g_last.GetSeconds() << std::endl;
    Simulator::Destroy();
}
