// SPDX-License-Identifier: BSD-2-Clause
//! A TCP/IP stack in the program, by smoltcp, over any port:
//!
//! ```text
//! stack serve PORT ADDRESS/PREFIX FILE            HTTP at TCP port 80: the file; UDP port 7 sends back what comes
//! stack get PORT ADDRESS/PREFIX SERVER [TIMES]    fetches it, writes its last copy to standard output, and the rate
//! stack echo PORT ADDRESS/PREFIX SERVER COUNT     sends datagrams to UDP port 7, one after the other
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant as Now;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, Ipv4Address};
use unetmap::Port;
use unetmap_adapters::smoltcp::Device;

/// Bytes of a connection's buffers, each way.
const WINDOW: usize = 256 << 10;
/// Connections that are served at once.
const CONNECTIONS: usize = 64;
const HTTP: u16 = 80;
const ECHO: u16 = 7;
/// Longest wait for a frame.
const LONGEST: Duration = Duration::from_secs(1);

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Stack {
    device: Device,
    interface: Interface,
    sockets: SocketSet<'static>,
}

impl Stack {
    fn open(port: &str, address: &str) -> Outcome<Stack> {
        let (address, prefix) = address.split_once('/').ok_or("an address is written as 10.0.0.1/24")?;
        let address: Ipv4Address = address.parse()?;
        let [.., c, d] = address.octets();
        let mut device = Device::new(Port::open(port)?);
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, c, d])));
        config.random_seed = std::process::id().into();
        let mut interface = Interface::new(config, &mut device, Now::now());
        let cidr = IpCidr::new(IpAddress::Ipv4(address), prefix.parse()?);
        interface.update_ip_addrs(|addresses| addresses.push(cidr).expect("room for one address"));
        Ok(Stack { device, interface, sockets: SocketSet::new(Vec::new()) })
    }

    fn add_tcp(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    fn add_udp(&mut self) -> SocketHandle {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 << 10]);
        self.sockets.add(udp::Socket::new(buffer(), buffer()))
    }

    /// Receives and sends frames.
    fn turn(&mut self) -> Outcome<()> {
        self.device.sync()?;
        self.interface.poll(Now::now(), &mut self.device, &mut self.sockets);
        Ok(self.device.sync()?)
    }

    /// Waits for a frame, or the next timer of the stack.
    fn wait(&mut self) -> Outcome<()> {
        let delay = self.interface.poll_delay(Now::now(), &self.sockets);
        let delay = delay.map_or(LONGEST, |delay| Duration::from_micros(delay.total_micros()).min(LONGEST));
        Ok(self.device.wait(Some(delay))?)
    }

    /// Serves a connection: `sent` bytes of the answer are in its buffer; `None`: the request has not come yet.
    fn serve(&mut self, connection: SocketHandle, sent: &mut Option<usize>, answer: &[u8]) -> Outcome<()> {
        let socket = self.sockets.get_mut::<tcp::Socket>(connection);
        if !socket.is_open() {
            *sent = None;
            socket.listen(HTTP)?;
        }
        if sent.is_none() && socket.can_recv() {
            let asked = socket.recv(|bytes| {
                let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
                // A request that is longer than the buffer, or comes in parts, is complete when its end has come.
                end.map_or((0, false), |end| (end + 4, true))
            })?;
            *sent = asked.then_some(0);
        }
        if let Some(at) = sent
            && socket.can_send()
        {
            *at += socket.send_slice(&answer[*at..])?;
            if *at == answer.len() {
                socket.close();
            }
        }
        if sent.is_none() && socket.state() == tcp::State::CloseWait {
            socket.close();
        }
        Ok(())
    }
}

fn serve(mut stack: Stack, file: &str) -> Outcome<()> {
    let body = std::fs::read(file)?;
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let answer = [head.into_bytes(), body].concat();
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| (stack.add_tcp(), None)).collect();
    let echo = stack.add_udp();
    stack.sockets.get_mut::<udp::Socket>(echo).bind(ECHO)?;
    println!("serving");
    loop {
        stack.turn()?;
        for (connection, sent) in &mut connections {
            stack.serve(*connection, sent, &answer)?;
        }
        let socket = stack.sockets.get_mut::<udp::Socket>(echo);
        while socket.can_recv() && socket.can_send() {
            let (datagram, from) = socket.recv()?;
            let datagram = datagram.to_vec();
            socket.send_slice(&datagram, from)?;
        }
        stack.turn()?;
        stack.wait()?;
    }
}

fn get(mut stack: Stack, server: Ipv4Address, times: u32) -> Outcome<()> {
    let (connection, start) = (stack.add_tcp(), Instant::now());
    let (mut page, mut all) = (Vec::new(), 0);
    for n in 0..times {
        page.clear();
        let local = 40_000 + (n % 20_000) as u16;
        let socket = stack.sockets.get_mut::<tcp::Socket>(connection);
        socket.abort();
        socket.connect(stack.interface.context(), (server, HTTP), local)?;
        let mut is_asked = false;
        loop {
            stack.turn()?;
            let socket = stack.sockets.get_mut::<tcp::Socket>(connection);
            if !is_asked && socket.can_send() {
                socket.send_slice(b"GET / HTTP/1.0\r\n\r\n")?;
                is_asked = true;
            }
            while socket.can_recv() {
                socket.recv(|bytes| (bytes.len(), page.extend_from_slice(bytes)))?;
            }
            if is_asked && !socket.may_recv() {
                socket.close();
                break;
            }
            if !socket.is_open() {
                return Err(format!("{server} refuses the connection").into());
            }
            stack.turn()?;
            stack.wait()?;
        }
        all += page.len();
    }
    stack.turn()?;
    let seconds = start.elapsed().as_secs_f64();
    let body = page.windows(4).position(|four| four == b"\r\n\r\n").ok_or("the answer is no HTTP")? + 4;
    std::io::stdout().write_all(&page[body..])?;
    eprintln!("{times} connections, {all} bytes, {:.2} Gbit/s", all as f64 * 8e-9 / seconds);
    Ok(())
}

fn echo(mut stack: Stack, server: Ipv4Address, count: u32) -> Outcome<()> {
    let handle = stack.add_udp();
    stack.sockets.get_mut::<udp::Socket>(handle).bind(ECHO + 1)?;
    let mut times = Vec::new();
    for n in 0..count {
        let mut start = Instant::now();
        let mut is_sent = false;
        loop {
            let socket = stack.sockets.get_mut::<udp::Socket>(handle);
            if !is_sent || start.elapsed() > LONGEST {
                socket.send_slice(&n.to_be_bytes(), (IpAddress::Ipv4(server), ECHO))?;
                (start, is_sent) = (Instant::now(), true);
            }
            stack.turn()?;
            let socket = stack.sockets.get_mut::<udp::Socket>(handle);
            if socket.can_recv() && socket.recv()?.0 == n.to_be_bytes() {
                break times.push(start.elapsed());
            }
            stack.wait()?;
        }
    }
    times.sort();
    println!("{count} datagrams came back, half of them within {:?}", times[times.len() / 2]);
    Ok(())
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", port, address, file] => serve(Stack::open(port, address)?, file),
        ["get", port, address, server] => get(Stack::open(port, address)?, server.parse()?, 1),
        ["get", port, address, server, times] => get(Stack::open(port, address)?, server.parse()?, times.parse()?),
        ["echo", port, address, server, count] => echo(Stack::open(port, address)?, server.parse()?, count.parse()?),
        _ => Err("usage: stack serve PORT ADDRESS/PREFIX FILE | get PORT ADDRESS/PREFIX SERVER [TIMES] | \
                  echo PORT ADDRESS/PREFIX SERVER COUNT"
            .into()),
    }
}
