package testkit

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// island is a network namespace with one link to ours. Servers that start inside have a network of their own, whose link can
// be cut as a cable is: packets are lost, and nobody is told. Nothing of it is left once the test and what it started
// have ended. It needs the rights CAP_SYS_ADMIN and CAP_NET_ADMIN.
type island struct {
	t           testing.TB
	here, there netip.Addr // the ends of the link
	home        *os.File   // the namespace that we live in
	space       *os.File   // the island's
}

// newIsland makes an island that ends with the test.
func newIsland(t testing.TB) (*island, error) {
	i := &island{t: t}
	var random [2]byte
	_, _ = rand.Read(random[:])
	// Of 198.18.0.0/15, which is set aside for laboratories: no network of the machine is there. A /30 has two hosts.
	net := [4]byte{198, 18 | random[0]&1, random[1], random[0] &^ 3}
	net[3]++
	i.here = netip.AddrFrom4(net)
	i.there = i.here.Next()
	left := false
	back := func() error {
		if !left {
			return nil
		}
		return unix.Setns(int(i.home.Fd()), unix.CLONE_NEWNET)
	}
	err := onOneThread(func() (err error) {
		if i.home, err = currentNetwork(); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("a network namespace: %w", err)
		}
		left = true
		if i.space, err = currentNetwork(); err == nil {
			err = i.build("dropctl" + strings.ToLower(rand.Text()[:7]))
		}
		return err
	}, back)
	t.Cleanup(func() {
		_, _ = i.home.Close(), i.space.Close() // closing none is an error that nobody minds
	})
	return i, err
}

// The island's interfaces. What is sent into the hole is lost.
const (
	linkName = "link"
	holeName = "hole"
	pitName  = "pit" // the other end of the hole
)

// build makes the interfaces, seen from inside; ours gets a name that no other has.
func (i *island) build(ours string) error {
	// A packet may come in where none would go out: that is what a one-way cut means.
	for _, which := range []string{"all", "default"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+which+"/rp_filter", []byte("0"), 0); err != nil {
			return err
		}
	}
	err := errors.Join(
		setUp("lo", true),
		addPair(holeName, pitName, nil), setUp(pitName, true), setUp(holeName, true),
		addPair(linkName, ours, i.home), addAddress(linkName, i.there), setUp(linkName, true))
	if err != nil {
		return err
	}
	if err := unix.Setns(int(i.home.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return errors.Join(addAddress(ours, i.here), setUp(ours, true))
}

// Inside runs fn on the island: the processes that it starts, and the sockets that it opens, are there.
func (i *island) Inside(fn func() error) error {
	return onOneThread(func() error {
		if err := unix.Setns(int(i.space.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return fn()
	}, func() error { return unix.Setns(int(i.home.Fd()), unix.CLONE_NEWNET) })
}

// onOneThread runs fn on a thread that no other goroutine runs on, and then back, which makes the thread again what it was. If
// that fails, the thread ends with the goroutine.
func onOneThread(fn, back func() error) (err error) {
	runtime.LockOSThread()
	defer func() {
		if problem := back(); problem != nil {
			err = errors.Join(err, problem)
			return
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

func currentNetwork() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// Cut takes the link away.
func (i *island) Cut() { i.must(func() error { return setUp(linkName, false) }) }

// CutReplies makes everything disappear that is sent from the island, while it goes on to receive.
func (i *island) CutReplies() {
	i.must(func() error { return route(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, i.here, holeName) })
}

// Heal ends every cut.
func (i *island) Heal() {
	i.must(func() error {
		if err := route(unix.RTM_DELROUTE, 0, i.here, holeName); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return setUp(linkName, true)
	})
}

// URL returns the address of a server on the island as it is: it can be reached there.
func (i *island) URL(_ testing.TB, server string) string { return server }

func (i *island) must(fn func() error) {
	i.t.Helper()
	if err := i.Inside(fn); err != nil {
		i.t.Errorf("a link between networks: %v", err)
	}
}

// What follows speaks rtnetlink, the kernel's protocol for networks: a message has a header, a structure by its type, and
// attributes. See rtnetlink(7).

// addPair makes two interfaces that are the ends of one cable; the other end lies in that network, nil: in this one.
func addPair(name, other string, network *os.File) error {
	peer := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, text(other))...)
	if network != nil {
		peer = append(peer, attribute(unix.IFLA_NET_NS_FD, number(uint32(network.Fd())))...)
	}
	const vethInfoPeer = 1
	kind := append(attribute(unix.IFLA_INFO_KIND, text("veth")), attribute(unix.IFLA_INFO_DATA, attribute(vethInfoPeer, peer))...)
	return ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, text(name)), attribute(unix.IFLA_LINKINFO, kind))
}

// setUp sets an interface up or down. The hole asks nobody for addresses: nobody would answer.
func setUp(name string, up bool) error {
	flags, change := uint32(0), uint32(unix.IFF_UP)
	if up {
		flags = unix.IFF_UP
	}
	if name == holeName {
		flags, change = flags|unix.IFF_NOARP, change|unix.IFF_NOARP
	}
	info := make([]byte, 8, unix.SizeofIfInfomsg)
	info = append(append(info, number(flags)...), number(change)...)
	return ask(unix.RTM_NEWLINK, 0, info, attribute(unix.IFLA_IFNAME, text(name)))
}

func addAddress(name string, a netip.Addr) error {
	index, err := interfaceIndex(name)
	if err != nil {
		return err
	}
	info := append([]byte{unix.AF_INET, 30, 0, 0}, number(index)...)
	return ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, info, attribute(unix.IFA_LOCAL, a.AsSlice()), attribute(unix.IFA_ADDRESS, a.AsSlice()))
}

// route makes or deletes the route to one address through an interface.
func route(kind uint16, flags uint16, to netip.Addr, name string) error {
	index, err := interfaceIndex(name)
	if err != nil {
		return err
	}
	info := append([]byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_LINK, unix.RTN_UNICAST}, number(0)...)
	return ask(kind, flags, info, attribute(unix.RTA_DST, to.AsSlice()), attribute(unix.RTA_OIF, number(index)))
}

// interfaceIndex asks in the network of the thread that it runs on.
func interfaceIndex(name string) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return request.Uint32(), nil
}

// ask sends one request to the kernel, in the network of the thread that it runs on, and returns what it says.
func ask(kind, flags uint16, info []byte, attributes ...[]byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	body := info
	for _, a := range attributes {
		body = append(body, a...)
	}
	message := number(uint32(unix.SizeofNlMsghdr + len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	message = append(append(message, make([]byte, 8)...), body...) // sequence and port: there is one request
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("the kernel's answer cannot be read")
	}
	if problem := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); problem != 0 {
		return unix.Errno(-problem)
	}
	return nil
}

// attribute has a length, a type and a value that is filled up to four bytes.
func attribute(kind uint16, value []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	a = binary.NativeEndian.AppendUint16(a, kind)
	a = append(a, value...)
	return append(a, make([]byte, -len(value)&3)...)
}

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func text(s string) []byte { return append([]byte(s), 0) }
