// SPDX-License-Identifier: BSD-2-Clause
//! A TCP/IP stack in the program, by smoltcp, over any port:
//!
//! ```text
//! stack serve PORT ADDRESS/PREFIX FILE            HTTP at TCP port 80: the file; UDP port 7 sends back what comes
//! stack get PORT ADDRESS/PREFIX SERVER [TIMES]    fetches it, writes its last copy to standard output, and the rate
//! stack many PORT ADDRESS/PREFIX SERVER COUNT     fetches it by as many connections, which are all open at once
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

/// Bytes of the buffer of a connection that carries a file, at its server and at its client.
const WINDOW: usize = 256 << 10;
/// Bytes of a server's buffer for a request.
const REQUEST: usize = 4 << 10;
/// Sockets that wait for a client: as many clients may come between two turns.
const LISTENERS: usize = 16;
/// Connections that are served at once.
const CONNECTIONS: usize = 8192;
/// Connections that have ended and are remembered (TIME-WAIT, for 10 s): the stack looks at each socket for each frame.
const ENDED: usize = 64;
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

    /// Adds a socket with buffers of so many bytes. The kernel gives memory for the pages that are used.
    fn add_tcp(&mut self, to_receive: usize, to_send: usize) -> SocketHandle {
        let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
        let mut socket = tcp::Socket::new(buffer(to_receive), buffer(to_send));
        // Otherwise the last frame of a window waits for an acknowledgement, which is delayed by 10 ms.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        self.sockets.add(socket)
    }

    fn add_udp(&mut self) -> SocketHandle {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 << 10]);
        self.sockets.add(udp::Socket::new(buffer(), buffer()))
    }

    /// Processes what has arrived, and writes what is to be sent.
    fn turn(&mut self) {
        self.interface.poll(Now::now(), &mut self.device, &mut self.sockets);
    }

    /// Sends, and waits for a frame, or the next timer of the stack.
    fn wait(&mut self) -> Outcome<()> {
        let delay = self.interface.poll_delay(Now::now(), &self.sockets);
        let delay = delay.map_or(LONGEST, |delay| Duration::from_micros(delay.total_micros()).min(LONGEST));
        Ok(self.device.wait(Some(delay))?)
    }
}

/// A socket of the server: `sent` bytes of the answer are in its buffer; `None`: the request has not come yet.
struct Connection {
    socket: SocketHandle,
    sent: Option<usize>,
}

impl Connection {
    /// Serves the client, or listens for one. Returns the socket's state.
    fn serve(&mut self, stack: &mut Stack, answer: &[u8]) -> Outcome<tcp::State> {
        let socket = stack.sockets.get_mut::<tcp::Socket>(self.socket);
        if !socket.is_open() {
            self.sent = None;
            socket.listen(HTTP)?;
        }
        if self.sent.is_none() && socket.can_recv() {
            let asked = socket.recv(|bytes| {
                let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
                // A request that comes in parts is complete when its end has come.
                end.map_or((0, false), |end| (end + 4, true))
            })?;
            self.sent = asked.then_some(0);
        }
        if let Some(at) = &mut self.sent
            && socket.can_send()
        {
            *at += socket.send_slice(&answer[*at..])?;
            if *at == answer.len() {
                socket.close();
            }
        }
        if self.sent.is_none() && socket.state() == tcp::State::CloseWait {
            socket.close();
        }
        Ok(socket.state())
    }
}

/// Serves all connections, and has some of them listen.
fn serve_all(stack: &mut Stack, connections: &mut Vec<Connection>, answer: &[u8]) -> Outcome<()> {
    let (mut listening, mut ended) = (0, 0);
    for connection in &mut *connections {
        match connection.serve(stack, answer)? {
            tcp::State::Listen => listening += 1,
            tcp::State::TimeWait => {
                ended += 1;
                if ended > ENDED {
                    stack.sockets.get_mut::<tcp::Socket>(connection.socket).abort();
                    connection.serve(stack, answer)?;
                    listening += 1;
                }
            }
            _ => {}
        }
    }
    while listening < LISTENERS && connections.len() < CONNECTIONS {
        let mut connection = Connection { socket: stack.add_tcp(REQUEST, WINDOW), sent: None };
        connection.serve(stack, answer)?;
        connections.push(connection);
        listening += 1;
    }
    Ok(())
}

fn serve(mut stack: Stack, file: &str) -> Outcome<()> {
    let body = std::fs::read(file)?;
    let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let answer = [head.into_bytes(), body].concat();
    let mut connections = Vec::new();
    let echo = stack.add_udp();
    stack.sockets.get_mut::<udp::Socket>(echo).bind(ECHO)?;
    serve_all(&mut stack, &mut connections, &answer)?;
    println!("serving");
    loop {
        stack.turn();
        serve_all(&mut stack, &mut connections, &answer)?;
        let socket = stack.sockets.get_mut::<udp::Socket>(echo);
        while socket.can_recv() && socket.can_send() {
            let (datagram, from) = socket.recv()?;
            let datagram = datagram.to_vec();
            socket.send_slice(&datagram, from)?;
        }
        stack.turn();
        stack.wait()?;
    }
}

/// A connection of the client, by which it fetches the file once.
struct Fetch {
    socket: SocketHandle,
    is_asked: bool,
    page: Vec<u8>,
}

impl Fetch {
    fn new(stack: &mut Stack) -> Fetch {
        Fetch { socket: stack.add_tcp(WINDOW, REQUEST), is_asked: false, page: Vec::new() }
    }

    /// Connects from the port of this number; forgets what was fetched before.
    fn connect(&mut self, stack: &mut Stack, server: Ipv4Address, number: u32) -> Outcome<()> {
        self.is_asked = false;
        self.page.clear();
        let socket = stack.sockets.get_mut::<tcp::Socket>(self.socket);
        socket.abort();
        let local = 40_000 + (number % 20_000) as u16;
        Ok(socket.connect(stack.interface.context(), (server, HTTP), local)?)
    }

    /// Whether the server has accepted; an error if it refuses.
    fn is_connected(&self, stack: &Stack) -> Outcome<bool> {
        let socket = stack.sockets.get::<tcp::Socket>(self.socket);
        if socket.is_open() { Ok(socket.may_send()) } else { Err("the server refuses the connection".into()) }
    }

    /// Asks, and takes what has come; returns whether that was all.
    fn progress(&mut self, stack: &mut Stack) -> Outcome<bool> {
        let socket = stack.sockets.get_mut::<tcp::Socket>(self.socket);
        if !self.is_asked && socket.can_send() {
            socket.send_slice(b"GET / HTTP/1.0\r\n\r\n")?;
            self.is_asked = true;
        }
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), self.page.extend_from_slice(bytes)))?;
        }
        let is_done = self.is_asked && !socket.may_recv();
        if is_done {
            socket.close();
        }
        Ok(is_done)
    }

    /// Returns the bytes after the header.
    fn body(&self) -> Outcome<&[u8]> {
        let end = self.page.windows(4).position(|four| four == b"\r\n\r\n").ok_or("the answer is no HTTP")?;
        Ok(&self.page[end + 4..])
    }
}

fn get(mut stack: Stack, server: Ipv4Address, times: u32) -> Outcome<()> {
    let (mut fetch, start, mut all) = (Fetch::new(&mut stack), Instant::now(), 0);
    for number in 0..times {
        fetch.connect(&mut stack, server, number)?;
        loop {
            stack.turn();
            if fetch.progress(&mut stack)? {
                finish(&mut stack)?;
                break;
            }
            fetch.is_connected(&stack)?;
            stack.turn();
            stack.wait()?;
        }
        all += fetch.page.len();
    }
    let seconds = start.elapsed().as_secs_f64();
    std::io::stdout().write_all(fetch.body()?)?;
    eprintln!("{times} connections, {all} bytes, {:.2} Gbit/s", all as f64 * 8e-9 / seconds);
    Ok(())
}

/// Sends what the last sockets have written.
fn finish(stack: &mut Stack) -> Outcome<()> {
    stack.turn();
    Ok(stack.device.sync()?)
}

fn many(mut stack: Stack, server: Ipv4Address, count: u32) -> Outcome<()> {
    let start = Instant::now();
    let mut fetches: Vec<Fetch> = Vec::new();
    let mut connected = 0;
    while connected < count as usize {
        // No more at once than the server has sockets for.
        while fetches.len() < (connected + LISTENERS).min(count as usize) {
            let mut fetch = Fetch::new(&mut stack);
            fetch.connect(&mut stack, server, fetches.len() as u32)?;
            fetches.push(fetch);
        }
        stack.turn();
        stack.wait()?;
        stack.turn();
        while connected < fetches.len() && fetches[connected].is_connected(&stack)? {
            connected += 1;
        }
    }
    let all_open = start.elapsed();
    let mut done = vec![false; fetches.len()];
    while done.contains(&false) {
        for (fetch, done) in fetches.iter_mut().zip(&mut done).filter(|(_, done)| !**done) {
            *done = fetch.progress(&mut stack)?;
        }
        stack.turn();
        stack.wait()?;
        stack.turn();
    }
    finish(&mut stack)?;
    let first = fetches.first().ok_or("no connection")?.body()?;
    for fetch in &fetches {
        if fetch.body()? != first {
            return Err("two connections fetched different pages".into());
        }
    }
    std::io::stdout().write_all(first)?;
    eprintln!("{count} connections at once, open after {all_open:.2?}, all fetched after {:.2?}", start.elapsed());
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
            stack.turn();
            stack.wait()?;
            stack.turn();
            let socket = stack.sockets.get_mut::<udp::Socket>(handle);
            if socket.can_recv() && socket.recv()?.0 == n.to_be_bytes() {
                break times.push(start.elapsed());
            }
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
        ["many", port, address, server, count] => many(Stack::open(port, address)?, server.parse()?, count.parse()?),
        ["echo", port, address, server, count] => echo(Stack::open(port, address)?, server.parse()?, count.parse()?),
        _ => Err("usage: stack serve PORT ADDRESS/PREFIX FILE | get PORT ADDRESS/PREFIX SERVER [TIMES] | \
                  many PORT ADDRESS/PREFIX SERVER COUNT | echo PORT ADDRESS/PREFIX SERVER COUNT"
            .into()),
    }
}
