'use strict';
// The server renders the whole page. While the page is visible, this fetches it again
// and updates what differs, so that selection and focus are kept.
{
  const period = 2000, lost = document.getElementById('lost'), main = document.querySelector('main')
  let timer, heard = new Date(), count = 0

  const become = (old, now) => {
    if (old.nodeName !== now.nodeName || old.childNodes.length !== now.childNodes.length) {
      old.replaceWith(now)
      return
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== now.data) old.data = now.data
      return
    }
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name)
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value)
    const next = [...now.childNodes]
    ;[...old.childNodes].forEach((child, i) => become(child, next[i]))
  }

  const look = async () => {
    clearTimeout(timer)
    if (document.hidden) return
    try {
      const answer = await fetch(location.pathname, { cache: 'no-store', signal: AbortSignal.timeout(5000) })
      if (!answer.ok) throw new Error(answer.status)
      const next = new DOMParser().parseFromString(await answer.text(), 'text/html')
      for (const part of ['style', 'script']) { // nodeprobe was updated
        if (next.querySelector(part).textContent !== document.querySelector(part).textContent) return location.reload()
      }
      document.title = next.title
      become(main, next.querySelector('main'))
      heard = new Date()
      lost.hidden = true
      document.documentElement.dataset.looks = ++count
    } catch (err) {
      lost.textContent = `No answer since ${heard.toLocaleTimeString()}: this page is out of date.`
      lost.hidden = false
    }
    document.documentElement.classList.toggle('old', !lost.hidden)
    timer = setTimeout(look, period)
  }

  document.addEventListener('visibilitychange', look)
  timer = setTimeout(look, period)
}
